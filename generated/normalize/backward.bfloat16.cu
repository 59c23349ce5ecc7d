// fusegen emit normalize --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// normalize, backward                                         declared in ops/distances.py
//   same_total = total == 0
//   sqrt_total = sqrt_rn(total)
//   chosen_total = where(same_total, total, sqrt_total)
//   length = clamp(chosen_total, eps, inf)
//   ratio_length = 1 / length
//   both = chosen_total >= eps and chosen_total <= inf
//   out = input * ratio_length
//   d_total = sum[d1](d_out * out)
//   ratio_length_2 = 2 * d_total * where(same_total, 1, 0.5 / sqrt_total) / length
//   d_input = d_out * ratio_length + where(both, -(input * ratio_length_2), 0)
// rows: 192 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(192, 7)
void normalize_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                             const bf16* __restrict__ d_out_ptr,   // [D0, D1]
                             const float* __restrict__ total_ptr,  // [D0]
                             bf16* __restrict__ d_input_ptr,       // [D0, D1]
                             float eps, int m, int n, int input_stride0, int d_out_stride0, int d_input_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][192]);
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][192]);
  const int j0 = row;
  const float total = fg::load(total_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
    fg::load_async(&d_out_row[part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
  }
  fg::await_loads();
  const bool same_total = total == 0.0f;
  const float sqrt_total = fg::sqrt(total);
  const float chosen_total = same_total ? total : sqrt_total;
  const float length = fg::clamp(chosen_total, eps, fg::infinity<float>());
  const float ratio_length = fg::divide(1.0f, length);
  const bool both = chosen_total >= eps && chosen_total <= fg::infinity<float>();

  float d_total = 0;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float out = input * ratio_length;
      d_total += d_out * out;
    }
  }
  fg::row_sum<192, 1, 0>(d_total);
  const float ratio_length_2 =
      fg::divide(2.0f * d_total * (same_total ? 1.0f : fg::divide(0.5f, sqrt_total)), length);

#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    fg::Vec<float, 8> d_input_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      d_input_v[k] = d_out * ratio_length + (both ? -(input * ratio_length_2) : 0.0f);
    }
    fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
  }
}
