// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_sum_exp = sum[d1](-prod_d_out_out)
//   d_input = prod_d_out_out + d_sum_exp * out
// strided rows: a thread for a result over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(128, 5)
void softmax_backward_f32(const float* __restrict__ d_out_ptr,  // [D0, D1, D2, D3]
                          const float* __restrict__ out_ptr,    // [D0, D1, D2, D3]
                          float* __restrict__ d_input_ptr,      // [D0, D1, D2, D3]
                          int m, int n, fg::Divisor n1, int d_out_stride0, int d_out_stride2, int out_stride0,
                          int out_stride2, int d_input_stride0, int d_input_stride2) {
  // A thread owns a result, whose elements stay in registers.
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  float d_out_row[19];
  float out_row[19];
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    d_out_row[at] = *(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    out_row[at] = *(out_ptr + j0 * out_stride0 + j1 + j2 * out_stride2);
  }

  float d_sum_exp = 0;
#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const float d_out = fg::load(&d_out_row[at]);
    const float out = fg::load(&out_row[at]);
    const float prod_d_out_out = d_out * out;
    d_sum_exp -= prod_d_out_out;
  }

#pragma unroll
  for (int at = 0; at < 19; ++at) {
    const int j2 = at;
    const float d_out = fg::load(&d_out_row[at]);
    const float out = fg::load(&out_row[at]);
    const float prod_d_out_out = d_out * out;
    fg::store(d_input_ptr + j0 * d_input_stride0 + j1 + j2 * d_input_stride2, prod_d_out_out + d_sum_exp * out);
  }
}
