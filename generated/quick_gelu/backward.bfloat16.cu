// fusegen emit quick_gelu --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// quick_gelu, backward                                        declared in ops/activations.py
//   prod_input = 1.702 * input
//   sigmoid_value = sigmoid(prod_input)
//   sum = prod_input * (1 - sigmoid_value) * sigmoid_value + sigmoid_value
//   d_input = d_out * sum
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void quick_gelu_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
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
    const float prod_input = 1.702f * input;
    const float sigmoid_value = fg::fast_sigmoid(prod_input);
    const float sum = prod_input * (1.0f - sigmoid_value) * sigmoid_value + sigmoid_value;
    d_input_v[k] = d_out * sum;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
