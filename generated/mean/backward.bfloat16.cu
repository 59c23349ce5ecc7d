// fusegen emit mean --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// mean, backward                                              declared in ops/reductions.py
//   d_input = d_out * (1 / float32(D0 * D1))
// elementwise: 8 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void mean_backward_bf16(const bf16* __restrict__ d_out_ptr,  // []
                        bf16* __restrict__ d_input_ptr,      // [D0, D1]
                        int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    d_input_v[k] = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
