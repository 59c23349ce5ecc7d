// fusegen emit squared_relu --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// squared_relu, backward                                      declared in ops/activations.py
//   d_input = where(input <= 0, 0, d_out * (2 * input))
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void squared_relu_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                                const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                                bf16* __restrict__ d_input_ptr,      // [D0, D1]
                                int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = input <= 0.0f ? 0.0f : d_out * (2.0f * input);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
