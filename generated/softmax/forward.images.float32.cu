// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, forward                                            declared in ops/softmaxes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
//   out = exp(input - stop_gradient(top)) / sum_exp
// strided rows: a thread for a result over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 6)
void softmax_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1, D2, D3]
                         float* __restrict__ out_ptr,          // [D0, D1, D2, D3]
                         int m, int n, fg::Divisor n1, int input_stride0, int input_stride2, int out_stride0,
                         int out_stride2) {
  // A thread owns a result, whose elements stay in registers.
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  float input_row[19];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    input_row[at] = *(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
  }

  fg::SumExp<float> sum_exp_state;
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const float input = fg::load(&input_row[at]);
    sum_exp_state.see(input);
  }
  sum_exp_state.settle();
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const float input = fg::load(&input_row[at]);
    sum_exp_state.take(input);
  }
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();

#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    const float input = fg::load(&input_row[at]);
    fg::store(out_ptr + j0 * out_stride0 + j1 + j2 * out_stride2, fg::divide(expf(input - top), sum_exp));
  }
}
