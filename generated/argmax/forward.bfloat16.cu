// fusegen emit argmax --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// argmax, forward                                             declared in ops/reductions.py
//   top = max[d0, d1](input)
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void argmax_forward_bf16_top(const bf16* __restrict__ input_ptr,            // [D0, D1]
                             fg::Maximum<float>* __restrict__ top_partial,  // [splits, m]
                             int n) {
  fg::Maximum<float> top_state;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      top_state.add(input);
    }
  }
  top_state = fg::block_merge<256>(top_state);

  if (threadIdx.x == 0) {
    top_partial[blockIdx.x] = top_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void argmax_forward_bf16_top_finish(const fg::Maximum<float>* top_partial,  // [splits, m]
                                    float* __restrict__ top_ptr,            // []
                                    int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Maximum<float> top_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    top_state.merge(top_partial[piece * m + result]);
  }
  top_state = fg::block_merge<128>(top_state);
  if (threadIdx.x > 0) return;
  const float top = top_state.result();
  fg::store(top_ptr, top);
}

// argmax, forward                                             declared in ops/reductions.py
//   any = input == top or input != input
//   bottom = min[d0, d1](where(any, index(d0) * D1 + index(d1), 9223372036854775807))
//   out = bottom
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void argmax_forward_bf16_out(const bf16* __restrict__ input_ptr,                 // [D0, D1]
                             const float* top_ptr,                               // []
                             fg::Minimum<int64_t>* __restrict__ bottom_partial,  // [splits, m]
                             int64_t D1, int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  const float top = fg::load(top_ptr);
  fg::Minimum<int64_t> bottom_state;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    int rest = at;
    const int j1 = fg::take(rest, n1);
    const int j0 = rest;
    const auto input_v = fg::load_vector<8>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const int64_t index_d0 = j0;
      const int64_t index_d1 = j1 + k;
      const bool any = input == top || input != input;
      bottom_state.add(any ? index_d0 * D1 + index_d1 : 9223372036854775807LL);
    }
  }
  bottom_state = fg::block_merge<256>(bottom_state);

  if (threadIdx.x == 0) {
    bottom_partial[blockIdx.x] = bottom_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void argmax_forward_bf16_out_finish(const fg::Minimum<int64_t>* bottom_partial,  // [splits, m]
                                    int64_t* __restrict__ out_ptr,               // []
                                    int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Minimum<int64_t> bottom_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    bottom_state.merge(bottom_partial[piece * m + result]);
  }
  bottom_state = fg::block_merge<128>(bottom_state);
  if (threadIdx.x > 0) return;
  const int64_t bottom = bottom_state.result();
  fg::store(out_ptr, bottom);
}
