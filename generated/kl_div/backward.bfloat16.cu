// fusegen emit kl_div --which backward --dtype bfloat16 --shape input=512,3072 --shape target=512,3072
#include "fusegen.cuh"

// kl_div, backward                                            declared in ops/likelihoods.py
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   sum = 1 + where(target == 0 and target <= 0, 0, log(target))
//   d_input = -(prod_d_out * target)
//   d_target = prod_d_out * (sum - input)
// elementwise: 8 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void kl_div_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                          const bf16* __restrict__ target_ptr,  // [D0, D1]
                          const bf16* __restrict__ d_out_ptr,   // []
                          bf16* __restrict__ d_input_ptr,       // [D0, D1]
                          bf16* __restrict__ d_target_ptr,      // [D0, D1]
                          int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto target_v = fg::load_vector<8>(target_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_target_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float target = target_v[k];
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
    const float sum = 1.0f + fg::select(target == 0.0f && target <= 0.0f, 0.0f, fg::fast_log(target));
    d_input_v[k] = -(prod_d_out * target);
    d_target_v[k] = prod_d_out * (sum - input);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_target_ptr + at, d_target_v);
}
