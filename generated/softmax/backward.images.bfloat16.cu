// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_sum_exp = sum[d1](-prod_d_out_out)
//   d_input = prod_d_out_out + d_sum_exp * out
// strided rows: a thread for 2 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 5)
void softmax_backward_bf16(const bf16* __restrict__ d_out_ptr,  // [D0, D1, D2, D3]
                           const bf16* __restrict__ out_ptr,    // [D0, D1, D2, D3]
                           bf16* __restrict__ d_input_ptr,      // [D0, D1, D2, D3]
                           int m, int n, fg::Divisor n1, int d_out_stride0, int d_out_stride2, int out_stride0,
                           int out_stride2, int d_input_stride0, int d_input_stride2) {
  // A thread owns 2 neighbouring results, whose elements stay in registers.
  const int result = 2 * (int(blockIdx.x) * 128 + threadIdx.x);
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  fg::Raw<bf16, 2> d_out_row[19];
  fg::Raw<bf16, 2> out_row[19];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    d_out_row[at] = fg::load_raw<2>(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    out_row[at] = fg::load_raw<2>(out_ptr + j0 * out_stride0 + j1 + j2 * out_stride2);
  }

  fg::Vec<float, 2> d_sum_exp_v = {};
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const auto d_out_v = fg::widen(d_out_row[at]);
    const auto out_v = fg::widen(out_row[at]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_sum_exp_v[k] -= prod_d_out_out;
    }
  }

#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    const auto d_out_v = fg::widen(d_out_row[at]);
    const auto out_v = fg::widen(out_row[at]);
    fg::Vec<float, 2> d_input_v;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_input_v[k] = prod_d_out_out + d_sum_exp_v[k] * out;
    }
    fg::store_vector<2>(d_input_ptr + (j0 * d_input_stride0 + j1 + j2 * d_input_stride2), d_input_v);
  }
}
