// fusegen emit softmax --which forward --dtype bfloat16 --shape input=64,65536 --arch sm_80
#include "fusegen.cuh"

// softmax, forward                                            declared in ops/softmaxes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
//   ratio_sum_exp = 1 / sum_exp
//   out = exp(input - stop_gradient(top)) * ratio_sum_exp
// rows: 512 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(512, 1)
void softmax_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                          bf16* __restrict__ out_ptr,          // [D0, D1]
                          int m, int n, int input_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_rows = fg::Raw<bf16, 8>[16][512];
  input_rows& input_row = fg::dynamic_shared<input_rows>();
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 16; ++part) {
    const int at = 8 * (512 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  fg::SumExp<float> sum_exp_state;
#pragma unroll 2
  for (int part = 0; part < 16; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      sum_exp_state.see(input);
    }
  }
  sum_exp_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 16; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      sum_exp_state.take_fast(input);
    }
  }
  sum_exp_state.finish();
  fg::row_merge<512, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();
  const float ratio_sum_exp = fg::divide(1.0f, sum_exp);

#pragma unroll 2
  for (int part = 0; part < 16; ++part) {
    const int at = 8 * (512 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      out_v[k] = fg::fast_exp_from_top(input - top) * ratio_sum_exp;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
