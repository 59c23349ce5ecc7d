// Rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   exp_value = exp(input - barrier(top))
//   out = exp_value / sum_exp
//   sum_sum_exp = sum[d1](-(d_out * (out / sum_exp)))
//   d_input = d_out * out + sum_sum_exp * exp_value
// lanes: a thread for a result over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 5)
void softmax_backward_f32(const float* __restrict__ input_ptr,    // [D0, D1, D2, D3]
                          const float* __restrict__ d_out_ptr,    // [D0, D1, D2, D3]
                          const float* __restrict__ top_ptr,      // [D0, D2, D3]
                          const float* __restrict__ sum_exp_ptr,  // [D0, D2, D3]
                          float* __restrict__ d_input_ptr,        // [D0, D1, D2, D3]
                          int m, int n, fg::Divisor n1, int input_stride0, int input_stride2, int d_out_stride0,
                          int d_out_stride2, int top_stride0, int sum_exp_stride0, int d_input_stride0,
                          int d_input_stride2) {
  // A thread owns a result, whose elements stay in registers.
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float top = fg::load(top_ptr + j0 * top_stride0 + j1);
  const float sum_exp = fg::load(sum_exp_ptr + j0 * sum_exp_stride0 + j1);
  float input_row[20];
  float d_out_row[20];
#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at < n) {
      const int j2 = at;
      input_row[at] = *(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
      d_out_row[at] = *(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    }
  }

  float sum_sum_exp = 0;
#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at >= n) break;
    const float input = fg::load(&input_row[at]);
    const float d_out = fg::load(&d_out_row[at]);
    const float exp_value = expf(input - top);
    const float out = exp_value / sum_exp;
    sum_sum_exp += -(d_out * (out / sum_exp));
  }

#pragma unroll
  for (int at = 0; at < 20; ++at) {
    if (at >= n) break;
    const int j2 = at;
    const float input = fg::load(&input_row[at]);
    const float d_out = fg::load(&d_out_row[at]);
    const float exp_value = expf(input - top);
    const float out = exp_value / sum_exp;
    const float d_input = d_out * out + sum_sum_exp * exp_value;
    fg::store(d_input_ptr + j0 * d_input_stride0 + j1 + j2 * d_input_stride2, d_input);
  }
}
