// Rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   exp_value = exp(input - barrier(top))
//   prod_d_out_exp_value = d_out * exp_value
//   sum_sum_exp = sum[d1](prod_d_out_exp_value)
//   prod_exp_value = exp_value * (sum_sum_exp / sum_exp / sum_exp)
//   d_input = prod_d_out_exp_value * (1 / sum_exp) - prod_exp_value
// lanes: a thread for 2 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 5)
void softmax_backward_bf16(const bf16* __restrict__ input_ptr,     // [D0, D1, D2, D3]
                           const bf16* __restrict__ d_out_ptr,     // [D0, D1, D2, D3]
                           const float* __restrict__ top_ptr,      // [D0, D2, D3]
                           const float* __restrict__ sum_exp_ptr,  // [D0, D2, D3]
                           bf16* __restrict__ d_input_ptr,         // [D0, D1, D2, D3]
                           int m, int n, fg::Divisor n1, int input_stride0, int input_stride2, int d_out_stride0,
                           int d_out_stride2, int top_stride0, int sum_exp_stride0, int d_input_stride0,
                           int d_input_stride2) {
  // A thread owns 2 neighbouring results, whose elements stay in registers.
  const int result = 2 * (int(blockIdx.x) * 128 + threadIdx.x);
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const auto top_v = fg::load_vector<2>(top_ptr + j0 * top_stride0 + j1);
  const auto sum_exp_v = fg::load_vector<2>(sum_exp_ptr + j0 * sum_exp_stride0 + j1);
  fg::Raw<bf16, 2> input_row[20];
  fg::Raw<bf16, 2> d_out_row[20];
#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at < n) {
      const int j2 = at;
      input_row[at] = fg::load_raw<2>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
      d_out_row[at] = fg::load_raw<2>(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    }
  }

  fg::Vec<float, 2> sum_sum_exp_v = {};
#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at >= n) break;
    const auto input_v = fg::widen(input_row[at]);
    const auto d_out_v = fg::widen(d_out_row[at]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float exp_value = fg::fast_exp_from_top(input - top_v[k]);
      const float prod_d_out_exp_value = d_out * exp_value;
      sum_sum_exp_v[k] += prod_d_out_exp_value;
    }
  }

#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at >= n) break;
    const int j2 = at;
    const auto input_v = fg::widen(input_row[at]);
    const auto d_out_v = fg::widen(d_out_row[at]);
    fg::Vec<float, 2> d_input_v;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float exp_value = fg::fast_exp_from_top(input - top_v[k]);
      const float prod_d_out_exp_value = d_out * exp_value;
      const float prod_exp_value = exp_value * (sum_sum_exp_v[k] / sum_exp_v[k] / sum_exp_v[k]);
      d_input_v[k] = prod_d_out_exp_value * (1.0f / sum_exp_v[k]) - prod_exp_value;
    }
    fg::store_vector<2>(d_input_ptr + j0 * d_input_stride0 + j1 + j2 * d_input_stride2, d_input_v);
  }
}
