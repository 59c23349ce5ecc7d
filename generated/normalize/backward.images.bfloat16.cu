// Operands with rows side by side: see IMAGES in tools/generate.py
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
// strided rows: 32 threads for 4 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(512, 2)
void normalize_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1, D2, D3]
                             const bf16* __restrict__ d_out_ptr,   // [D0, D1, D2, D3]
                             const float* __restrict__ total_ptr,  // [D0, D2, D3]
                             bf16* __restrict__ d_input_ptr,       // [D0, D1, D2, D3]
                             float eps, int m, int n, fg::Divisor n1, int input_stride0, int input_stride2,
                             int d_out_stride0, int d_out_stride2, int total_stride0, int d_input_stride0,
                             int d_input_stride2) {
  // 32 threads own 4 neighbouring results and share the elements, which stay in registers.
  const int first = 64 * int(blockIdx.x);
  const int result = first + 4 * threadIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const auto total_v = fg::load_vector<4>(total_ptr + j0 * total_stride0 + j1);
  fg::Raw<bf16, 4> input_row[8];
  fg::Raw<bf16, 4> d_out_row[8];
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = 32 * part + threadIdx.y;
    const int j2 = at;
    input_row[part] = fg::load_raw<4>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
    d_out_row[part] = fg::load_raw<4>(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
  }

  fg::Vec<bool, 4> same_total_v;
  fg::Vec<float, 4> sqrt_total_v;
  fg::Vec<float, 4> chosen_total_v;
  fg::Vec<float, 4> length_v;
  fg::Vec<float, 4> ratio_length_v;
  fg::Vec<bool, 4> both_v;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    same_total_v[k] = total_v[k] == 0.0f;
    sqrt_total_v[k] = fg::sqrt(total_v[k]);
    chosen_total_v[k] = same_total_v[k] ? total_v[k] : sqrt_total_v[k];
    length_v[k] = fg::clamp(chosen_total_v[k], eps, fg::infinity<float>());
    ratio_length_v[k] = fg::divide(1.0f, length_v[k]);
    both_v[k] = chosen_total_v[k] >= eps && chosen_total_v[k] <= fg::infinity<float>();
  }

  fg::Vec<float, 4> d_total_v = {};
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const auto input_v = fg::widen(input_row[part]);
    const auto d_out_v = fg::widen(d_out_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float out = input * ratio_length_v[k];
      d_total_v[k] += d_out * out;
    }
  }
  fg::columns_sum<32, 16, 0>(d_total_v[0], d_total_v[1], d_total_v[2], d_total_v[3]);
  fg::Vec<float, 4> ratio_length_2_v;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    ratio_length_2_v[k] =
        fg::divide(2.0f * d_total_v[k] * (same_total_v[k] ? 1.0f : fg::divide(0.5f, sqrt_total_v[k])), length_v[k]);
  }

#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = 32 * part + threadIdx.y;
    const int j2 = at;
    const auto input_v = fg::widen(input_row[part]);
    const auto d_out_v = fg::widen(d_out_row[part]);
    fg::Vec<float, 4> d_input_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      d_input_v[k] = d_out * ratio_length_v[k] + (both_v[k] ? -(input * ratio_length_2_v[k]) : 0.0f);
    }
    fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1 + j2 * d_input_stride2), d_input_v);
  }
}
