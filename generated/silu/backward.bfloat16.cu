// fusegen emit silu --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// silu, backward                                              declared in ops/activations.py
//   sigmoid_input = sigmoid(input)
//   sum = input * (1 - sigmoid_input) * sigmoid_input + sigmoid_input
//   d_input = d_out * sum
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void silu_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
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
    const float sigmoid_input = fg::fast_sigmoid(input);
    const float sum = input * (1.0f - sigmoid_input) * sigmoid_input + sigmoid_input;
    d_input_v[k] = d_out * sum;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
