// fusegen emit mish --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// mish, backward                                              declared in ops/activations.py
//   exp_clamped_input = exp_clamped(input)
//   prod = exp_clamped_input * (exp_clamped_input + 2)
//   sum = prod + 2
//   prod_2 = 4 * (prod + 1) * ratio(1, sum)^2
//   ratio_value = ratio(exp_clamped_input, exp_clamped_input + 1)
//   prod_3 = input * prod_2 * ratio_value
//   tanh_value = ratio(prod, sum)
//   d_input = d_out * (prod_3 + tanh_value)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void mish_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
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
    const float exp_clamped_input = fg::fast_exp_clamped(input);
    const float prod = exp_clamped_input * (exp_clamped_input + 2.0f);
    const float sum = prod + 2.0f;
    const float prod_2 = 4.0f * (prod + 1.0f) * fg::powi<2>(fg::fast_ratio(1.0f, sum));
    const float ratio_value = fg::fast_ratio(exp_clamped_input, exp_clamped_input + 1.0f);
    const float prod_3 = input * prod_2 * ratio_value;
    const float tanh_value = fg::fast_ratio(prod, sum);
    d_input_v[k] = d_out * (prod_3 + tanh_value);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
