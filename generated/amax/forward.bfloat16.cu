// fusegen emit amax --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// amax, forward                                               declared in ops/reductions.py
//   top = max[d0, d1](input)
//   out = top
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void amax_forward_bf16(const bf16* __restrict__ input_ptr,            // [D0, D1]
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
void amax_forward_bf16_finish(const fg::Maximum<float>* top_partial,  // [splits, m]
                              bf16* __restrict__ out_ptr,             // []
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
  fg::store(out_ptr, top);
}
