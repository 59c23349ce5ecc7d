// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// normalize, forward                                          declared in ops/distances.py
//   total = sum[d1](input * input)
//   same_total = total == 0
//   chosen_total = where(same_total, total, sqrt(where(same_total, 1, total)))
//   length = clamp(chosen_total, eps, inf)
//   out = input / length
// strided rows: 16 threads for a result over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(256, 4)
void normalize_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1, D2, D3]
                           float* __restrict__ out_ptr,          // [D0, D1, D2, D3]
                           float eps, int m, int n, fg::Divisor n1, int input_stride0, int input_stride2,
                           int out_stride0, int out_stride2) {
  // 16 threads own a result and share the elements, which stay in registers.
  const int first = 16 * int(blockIdx.x);
  const int result = first + threadIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  float input_row[16];
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 16 * part + threadIdx.y;
    const int j2 = at;
    input_row[part] = *(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
  }

  float total = 0;
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const float input = fg::load(&input_row[part]);
    total += input * input;
  }
  fg::columns_sum<16, 16, 0>(total);
  const bool same_total = total == 0.0f;
  const float chosen_total = same_total ? total : fg::sqrt(same_total ? 1.0f : total);
  const float length = fg::clamp(chosen_total, eps, fg::infinity<float>());

#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 16 * part + threadIdx.y;
    const int j2 = at;
    const float input = fg::load(&input_row[part]);
    fg::store(out_ptr + j0 * out_stride0 + j1 + j2 * out_stride2, fg::divide(input, length));
  }
}
