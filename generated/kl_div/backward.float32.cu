// fusegen emit kl_div --which backward --dtype float32 --shape input=512,3072 --shape target=512,3072
#include "fusegen.cuh"

// kl_div, backward                                            declared in ops/likelihoods.py
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   sum = 1 + where(target == 0 and target <= 0, 0, log(target))
//   d_input = -(prod_d_out * target)
//   d_target = prod_d_out * (sum - input)
// elementwise: 4 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void kl_div_backward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                         const float* __restrict__ target_ptr,  // [D0, D1]
                         const float* __restrict__ d_out_ptr,   // []
                         float* __restrict__ d_input_ptr,       // [D0, D1]
                         float* __restrict__ d_target_ptr,      // [D0, D1]
                         int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto target_v = fg::load_vector<4>(target_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> d_target_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float target = target_v[k];
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
    const float sum = 1.0f + fg::select(target == 0.0f && target <= 0.0f, 0.0f, logf(target));
    d_input_v[k] = -(prod_d_out * target);
    d_target_v[k] = prod_d_out * (sum - input);
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(d_target_ptr + at, d_target_v);
}
