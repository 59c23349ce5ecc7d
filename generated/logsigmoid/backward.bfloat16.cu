// fusegen emit logsigmoid --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// logsigmoid, backward                                        declared in ops/activations.py
//   d_input = d_out * sigmoid(-input)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void logsigmoid_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
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
    d_input_v[k] = d_out * fg::fast_sigmoid(-input);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
