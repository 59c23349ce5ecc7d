// fusegen emit residual_bias_log_softmax --which forward --dtype float32 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_log_softmax, forward                          declared in ops/fused_norms.py
//   total = input + bias + residual
//   top = max[d1](total)
//   sum_exp = sum_exp[d1](total)
//   out = total - barrier(top) - log(sum_exp)
// rows: 256 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(256, 5)
void residual_bias_log_softmax_forward_f32(const float* __restrict__ input_ptr,     // [D0, D1]
                                           const float* __restrict__ bias_ptr,      // [D1]
                                           const float* __restrict__ residual_ptr,  // [D0, D1]
                                           float* __restrict__ out_ptr,             // [D0, D1]
                                           int m, int n, int input_stride0, int residual_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [3][256]);
  using residual_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(residual_element, residual_row, [3][256]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
    fg::load_async(&residual_row[part][thread], residual_ptr + j0 * residual_stride0 + j1);
  }
  fg::await_loads();

  fg::SumExp<float> sum_exp_state;
#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      sum_exp_state.see(total);
    }
  }
  sum_exp_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      sum_exp_state.take(total);
    }
  }
  sum_exp_state.finish();
  fg::row_merge<256, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();

#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    fg::Vec<float, 4> out_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total = input + bias + residual;
      out_v[k] = total - top - logf(sum_exp);
    }
    fg::store_vector<4>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
