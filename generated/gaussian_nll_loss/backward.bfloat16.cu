// fusegen emit gaussian_nll_loss --which backward --dtype bfloat16 --shape input=512,3072 --shape target=512,3072
//     --shape var=512,3072
#include "fusegen.cuh"

// gaussian_nll_loss, backward                                 declared in ops/likelihoods.py
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   prod_input = 2 * input
//   prod_target = 2 * target
//   v = var + barrier(where(var < eps, eps - var, 0))
//   d = input - target
//   d_input = prod_d_out * (0.5 * (prod_input - prod_target) / v)
//   d_target = prod_d_out * (0.5 * (prod_target - prod_input) / v)
//   d_var = prod_d_out * (0.5 / v - 0.5 * (d * d / v) / v)
// elementwise: 8 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void gaussian_nll_loss_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                                     const bf16* __restrict__ target_ptr,  // [D0, D1]
                                     const bf16* __restrict__ var_ptr,     // [D0, D1]
                                     const bf16* __restrict__ d_out_ptr,   // []
                                     bf16* __restrict__ d_input_ptr,       // [D0, D1]
                                     bf16* __restrict__ d_target_ptr,      // [D0, D1]
                                     bf16* __restrict__ d_var_ptr,         // [D0, D1]
                                     float eps, int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto target_v = fg::load_vector<8>(target_ptr + at);
  const auto var_v = fg::load_vector<8>(var_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_target_v;
  fg::Vec<float, 8> d_var_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float target = target_v[k];
    const float var = var_v[k];
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
    const float prod_input = 2.0f * input;
    const float prod_target = 2.0f * target;
    const float v = var + (var < eps ? eps - var : 0.0f);
    const float d = input - target;
    d_input_v[k] = prod_d_out * (0.5f * (prod_input - prod_target) / v);
    d_target_v[k] = prod_d_out * (0.5f * (prod_target - prod_input) / v);
    d_var_v[k] = prod_d_out * (0.5f / v - 0.5f * (d * d / v) / v);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_target_ptr + at, d_target_v);
  fg::store_vector<8>(d_var_ptr + at, d_var_v);
}
