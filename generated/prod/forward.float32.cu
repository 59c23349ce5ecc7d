// fusegen emit prod --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// prod, forward                                               declared in ops/reductions.py
//   total = prod[d0, d1](input)
//   out = total
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void prod_forward_f32(const float* __restrict__ input_ptr,             // [D0, D1]
                      fg::Product<float>* __restrict__ total_partial,  // [splits, m]
                      int n) {
  fg::Product<float> total_state;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<4>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      total_state.add(input);
    }
  }
  total_state = fg::block_merge<256>(total_state);

  if (threadIdx.x == 0) {
    total_partial[blockIdx.x] = total_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void prod_forward_f32_finish(const fg::Product<float>* total_partial,  // [splits, m]
                             float* __restrict__ out_ptr,              // []
                             int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Product<float> total_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    total_state.merge(total_partial[piece * m + result]);
  }
  total_state = fg::block_merge<128>(total_state);
  if (threadIdx.x > 0) return;
  const float total = total_state.result();
  fg::store(out_ptr, total);
}
