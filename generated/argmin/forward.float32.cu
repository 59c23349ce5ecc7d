// fusegen emit argmin --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// argmin, forward                                             declared in ops/reductions.py
//   bottom = min[d0, d1](input)
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void argmin_forward_f32_bottom(const float* __restrict__ input_ptr,              // [D0, D1]
                               fg::Minimum<float>* __restrict__ bottom_partial,  // [splits, m]
                               int n) {
  fg::Minimum<float> bottom_state;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<4>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      bottom_state.add(input);
    }
  }
  bottom_state = fg::block_merge<256>(bottom_state);

  if (threadIdx.x == 0) {
    bottom_partial[blockIdx.x] = bottom_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void argmin_forward_f32_bottom_finish(const fg::Minimum<float>* bottom_partial,  // [splits, m]
                                      float* __restrict__ bottom_ptr,            // []
                                      int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Minimum<float> bottom_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    bottom_state.merge(bottom_partial[piece * m + result]);
  }
  bottom_state = fg::block_merge<128>(bottom_state);
  if (threadIdx.x > 0) return;
  const float bottom = bottom_state.result();
  fg::store(bottom_ptr, bottom);
}

// argmin, forward                                             declared in ops/reductions.py
//   any = input == bottom or input != input
//   bottom_2 = min[d0, d1](where(any, index(d0) * D1 + index(d1), 9223372036854775807))
//   out = bottom_2
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void argmin_forward_f32_out(const float* __restrict__ input_ptr,                  // [D0, D1]
                            const float* bottom_ptr,                              // []
                            fg::Minimum<int64_t>* __restrict__ bottom_2_partial,  // [splits, m]
                            int64_t D1, int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  const float bottom = fg::load(bottom_ptr);
  fg::Minimum<int64_t> bottom_2_state;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    int rest = at;
    const int j1 = fg::take(rest, n1);
    const int j0 = rest;
    const auto input_v = fg::load_vector<4>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const int64_t index_d0 = j0;
      const int64_t index_d1 = j1 + k;
      const bool any = input == bottom || input != input;
      bottom_2_state.add(any ? index_d0 * D1 + index_d1 : 9223372036854775807LL);
    }
  }
  bottom_2_state = fg::block_merge<256>(bottom_2_state);

  if (threadIdx.x == 0) {
    bottom_2_partial[blockIdx.x] = bottom_2_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void argmin_forward_f32_out_finish(const fg::Minimum<int64_t>* bottom_2_partial,  // [splits, m]
                                   int64_t* __restrict__ out_ptr,                 // []
                                   int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Minimum<int64_t> bottom_2_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    bottom_2_state.merge(bottom_2_partial[piece * m + result]);
  }
  bottom_2_state = fg::block_merge<128>(bottom_2_state);
  if (threadIdx.x > 0) return;
  const int64_t bottom_2 = bottom_2_state.result();
  fg::store(out_ptr, bottom_2);
}
