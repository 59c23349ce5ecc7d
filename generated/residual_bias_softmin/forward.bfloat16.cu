// fusegen emit residual_bias_softmin --which forward --dtype bfloat16 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_softmin, forward                              declared in ops/fused_norms.py
//   total = input + bias + residual
//   x = -total
//   top = max[d1](x)
//   sum_exp = sum_exp[d1](x)
//   out = exp(x - barrier(top)) * (1 / sum_exp)
// rows: 192 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(192, 7)
void residual_bias_softmin_forward_bf16(const bf16* __restrict__ input_ptr,     // [D0, D1]
                                        const bf16* __restrict__ bias_ptr,      // [D1]
                                        const bf16* __restrict__ residual_ptr,  // [D0, D1]
                                        bf16* __restrict__ out_ptr,             // [D0, D1]
                                        int m, int n, int input_stride0, int residual_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][192]);
  using residual_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(residual_element, residual_row, [2][192]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
    fg::load_async(&residual_row[part][thread], residual_ptr + j0 * residual_stride0 + j1);
  }
  fg::await_loads();

  fg::SumExp<float> sum_exp_state;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      const float x = -total;
      sum_exp_state.see(x);
    }
  }
  sum_exp_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      const float x = -total;
      sum_exp_state.take_fast(x);
    }
  }
  sum_exp_state.finish();
  fg::row_merge<192, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();

#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      const float x = -total;
      out_v[k] = fg::fast_exp_from_top(x - top) * (1.0f / sum_exp);
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
