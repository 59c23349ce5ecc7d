// fusegen emit gelu --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// gelu, backward                                              declared in ops/activations.py
//   prod_input = -0.7071067811865476 * input
//   exp_value = exp(-prod_input^2)
//   prod = 0.3989422804014327 * input * exp_value
//   d_input = d_out * (prod + 0.5 * erfc(prod_input))
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void gelu_backward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                       const float* __restrict__ d_out_ptr,  // [D0, D1]
                       float* __restrict__ d_input_ptr,      // [D0, D1]
                       int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float d_out = d_out_v[k];
    const float prod_input = -0.7071067811865476f * input;
    const float exp_value = expf(-(prod_input * prod_input));
    const float prod = 0.3989422804014327f * input * exp_value;
    d_input_v[k] = d_out * (prod + 0.5f * erfcf(prod_input));
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
