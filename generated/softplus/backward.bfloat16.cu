// fusegen emit softplus --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// softplus, backward                                          declared in ops/activations.py
//   prod_beta_input = beta * input
//   chosen = where(prod_beta_input > threshold, 1, sigmoid(prod_beta_input))
//   d_input = d_out * chosen
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void softplus_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                            const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                            bf16* __restrict__ d_input_ptr,      // [D0, D1]
                            float beta, float threshold, int n) {
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
    const float prod_beta_input = beta * input;
    const float chosen = prod_beta_input > threshold ? 1.0f : fg::fast_sigmoid(prod_beta_input);
    d_input_v[k] = d_out * chosen;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
