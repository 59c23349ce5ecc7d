// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, forward                                            declared in ops/softmaxes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
//   ratio_sum_exp = 1 / sum_exp
//   out = exp(input - stop_gradient(top)) * ratio_sum_exp
// strided rows: a thread for 2 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 6)
void softmax_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1, D2, D3]
                          bf16* __restrict__ out_ptr,          // [D0, D1, D2, D3]
                          int m, int n, fg::Divisor n1, int input_stride0, int input_stride2, int out_stride0,
                          int out_stride2) {
  // A thread owns 2 neighbouring results, whose elements stay in registers.
  const int result = 2 * (int(blockIdx.x) * 128 + threadIdx.x);
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  fg::Raw<bf16, 2> input_row[19];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    input_row[at] = fg::load_raw<2>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
  }

  fg::SumExp<float> sum_exp_state[2];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const auto input_v = fg::widen(input_row[at]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      sum_exp_state[k].see(input);
    }
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sum_exp_state[k].settle();
  }
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const auto input_v = fg::widen(input_row[at]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      sum_exp_state[k].take_fast(input);
    }
  }
  fg::Vec<float, 2> sum_exp_v;
  fg::Vec<float, 2> top_v;
  fg::Vec<float, 2> ratio_sum_exp_v;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sum_exp_v[k] = sum_exp_state[k].result();
    top_v[k] = sum_exp_state[k].partner();
    ratio_sum_exp_v[k] = fg::divide(1.0f, sum_exp_v[k]);
  }

#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    const auto input_v = fg::widen(input_row[at]);
    fg::Vec<float, 2> out_v;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      out_v[k] = fg::fast_exp_from_top(input - top_v[k]) * ratio_sum_exp_v[k];
    }
    fg::store_vector<2>(out_ptr + (j0 * out_stride0 + j1 + j2 * out_stride2), out_v);
  }
}
