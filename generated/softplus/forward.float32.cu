// fusegen emit softplus --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// softplus, forward                                           declared in ops/activations.py
//   prod_beta_input = beta * input
//   ratio_beta = softplus(prod_beta_input) / beta
//   out = where(prod_beta_input > threshold, input, ratio_beta)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void softplus_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                          float* __restrict__ out_ptr,          // [D0, D1]
                          float beta, float threshold, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float prod_beta_input = beta * input;
    const float ratio_beta = fg::softplus(prod_beta_input) / beta;
    out_v[k] = prod_beta_input > threshold ? input : ratio_beta;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
