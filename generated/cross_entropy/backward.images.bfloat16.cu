// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// cross_entropy, backward                                     declared in ops/classes.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D1)
//   prod_d_out = d_out * (1 / float32(total_2))
//   ratio = prod_d_out / guarded_sum_exp
//   prod = exp(input - stop_gradient(guarded_top)) * ratio
//   d_input = where(divisor, where(index(d1) == target, -prod_d_out, 0) + prod, 0)
// strided rows: a thread for 2 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 6)
void cross_entropy_backward_bf16(const bf16* __restrict__ input_ptr,             // [D0, D1, D2, D3]
                                 const int64_t* __restrict__ target_ptr,         // [D0, D2, D3]
                                 const bf16* __restrict__ d_out_ptr,             // []
                                 const float* __restrict__ guarded_top_ptr,      // [D0, D2, D3]
                                 const float* __restrict__ guarded_sum_exp_ptr,  // [D0, D2, D3]
                                 const int64_t* __restrict__ total_2_ptr,        // []
                                 bf16* __restrict__ d_input_ptr,                 // [D0, D1, D2, D3]
                                 int64_t ignore_index, int64_t D1, int m, int n, fg::Divisor n1, int input_stride0,
                                 int input_stride2, int target_stride0, int guarded_top_stride0,
                                 int guarded_sum_exp_stride0, int d_input_stride0, int d_input_stride2) {
  const float d_out = fg::load(d_out_ptr);
  const int64_t total_2 = fg::load(total_2_ptr);
  // A thread owns 2 neighbouring results, whose elements stay in registers.
  const int result = 2 * (int(blockIdx.x) * 128 + threadIdx.x);
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const auto target_v = fg::load_vector<2>(target_ptr + j0 * target_stride0 + j1);
  const auto guarded_top_v = fg::load_vector<2>(guarded_top_ptr + j0 * guarded_top_stride0 + j1);
  const auto guarded_sum_exp_v = fg::load_vector<2>(guarded_sum_exp_ptr + j0 * guarded_sum_exp_stride0 + j1);
  fg::Raw<bf16, 2> input_row[19];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    input_row[at] = fg::load_raw<2>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
  }

  fg::Vec<bool, 2> divisor_v;
  fg::Vec<float, 2> prod_d_out_v;
  fg::Vec<float, 2> ratio_v;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    divisor_v[k] = ((target_v[k] != ignore_index) & (target_v[k] >= 0)) & (target_v[k] < D1);
    prod_d_out_v[k] = d_out * fg::divide(1.0f, float(total_2));
    ratio_v[k] = fg::divide(prod_d_out_v[k], guarded_sum_exp_v[k]);
  }

#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    const auto input_v = fg::widen(input_row[at]);
    const int64_t index_d1 = j2;
    fg::Vec<float, 2> d_input_v;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      const float prod = fg::fast_exp_from_top(input - guarded_top_v[k]) * ratio_v[k];
      d_input_v[k] = divisor_v[k] ? (index_d1 == target_v[k] ? -prod_d_out_v[k] : 0.0f) + prod : 0.0f;
    }
    fg::store_vector<2>(d_input_ptr + (j0 * d_input_stride0 + j1 + j2 * d_input_stride2), d_input_v);
  }
}
