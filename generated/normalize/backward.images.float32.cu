// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// normalize, backward                                         declared in ops/distances.py
//   same_total = total == 0
//   sqrt_total = sqrt(total)
//   chosen_total = where(same_total, total, sqrt_total)
//   length = clamp(chosen_total, eps, inf)
//   ratio_length = 1 / length
//   both = chosen_total >= eps and chosen_total <= inf
//   out = input / length
//   d_total = sum[d1](d_out * out)
//   ratio_length_2 = 2 * d_total * where(same_total, 1, 0.5 / sqrt_total) / length
//   d_input = d_out * ratio_length + where(both, -(input * ratio_length_2), 0)
// strided rows: 32 threads for a result over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(512, 2)
void normalize_backward_f32(const float* __restrict__ input_ptr,  // [D0, D1, D2, D3]
                            const float* __restrict__ d_out_ptr,  // [D0, D1, D2, D3]
                            const float* __restrict__ total_ptr,  // [D0, D2, D3]
                            float* __restrict__ d_input_ptr,      // [D0, D1, D2, D3]
                            float eps, int m, int n, fg::Divisor n1, int input_stride0, int input_stride2,
                            int d_out_stride0, int d_out_stride2, int total_stride0, int d_input_stride0,
                            int d_input_stride2) {
  // 32 threads own a result and share the elements, which stay in registers.
  const int first = 16 * int(blockIdx.x);
  const int result = first + threadIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float total = fg::load(total_ptr + j0 * total_stride0 + j1);
  float input_row[8];
  float d_out_row[8];
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = 32 * part + threadIdx.y;
    const int j2 = at;
    input_row[part] = *(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
    d_out_row[part] = *(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
  }

  const bool same_total = total == 0.0f;
  const float sqrt_total = fg::sqrt(total);
  const float chosen_total = same_total ? total : sqrt_total;
  const float length = fg::clamp(chosen_total, eps, fg::infinity<float>());
  const float ratio_length = fg::divide(1.0f, length);
  const bool both = chosen_total >= eps && chosen_total <= fg::infinity<float>();

  float d_total = 0;
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const float input = fg::load(&input_row[part]);
    const float d_out = fg::load(&d_out_row[part]);
    const float out = fg::divide(input, length);
    d_total += d_out * out;
  }
  fg::columns_sum<32, 16, 0>(d_total);
  const float ratio_length_2 =
      fg::divide(2.0f * d_total * (same_total ? 1.0f : fg::divide(0.5f, sqrt_total)), length);

#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = 32 * part + threadIdx.y;
    const int j2 = at;
    const float input = fg::load(&input_row[part]);
    const float d_out = fg::load(&d_out_row[part]);
    const float d_input = d_out * ratio_length + (both ? -(input * ratio_length_2) : 0.0f);
    fg::store(d_input_ptr + j0 * d_input_stride0 + j1 + j2 * d_input_stride2, d_input);
  }
}
