// fusegen emit softplus --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// softplus, forward                                           declared in ops/activations.py
//   prod_beta_input = beta * input
//   ratio_beta = softplus(prod_beta_input) / beta
//   out = where(prod_beta_input > threshold, input, ratio_beta)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void softplus_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                           bf16* __restrict__ out_ptr,          // [D0, D1]
                           float beta, float threshold, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float prod_beta_input = beta * input;
    const float ratio_beta = fg::fast_softplus(prod_beta_input) / beta;
    out_v[k] = prod_beta_input > threshold ? input : ratio_beta;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
