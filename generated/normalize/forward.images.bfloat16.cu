// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// normalize, forward                                          declared in ops/distances.py
//   total = sum[d1](input * input)
//   same_total = total == 0
//   chosen_total = where(same_total, total, sqrt(where(same_total, 1, total)))
//   length = clamp(chosen_total, eps, inf)
//   ratio_length = 1 / length
//   out = input * ratio_length
// strided rows: 16 threads for 2 neighbouring results over D1, whose elements stay in registers: read once
extern "C" __global__ __launch_bounds__(256, 4)
void normalize_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1, D2, D3]
                            bf16* __restrict__ out_ptr,          // [D0, D1, D2, D3]
                            float eps, int m, int n, fg::Divisor n1, int input_stride0, int input_stride2,
                            int out_stride0, int out_stride2) {
  // 16 threads own 2 neighbouring results and share the elements, which stay in registers.
  const int first = 32 * int(blockIdx.x);
  const int result = first + 2 * threadIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  fg::Raw<bf16, 2> input_row[16];
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 16 * part + threadIdx.y;
    const int j2 = at;
    input_row[part] = fg::load_raw<2>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
  }

  fg::Vec<float, 2> total_v = {};
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const auto input_v = fg::widen(input_row[part]);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      total_v[k] += input * input;
    }
  }
  fg::columns_sum<16, 16, 0>(total_v[0], total_v[1]);
  fg::Vec<bool, 2> same_total_v;
  fg::Vec<float, 2> chosen_total_v;
  fg::Vec<float, 2> length_v;
  fg::Vec<float, 2> ratio_length_v;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    same_total_v[k] = total_v[k] == 0.0f;
    chosen_total_v[k] = same_total_v[k] ? total_v[k] : fg::fast_sqrt(same_total_v[k] ? 1.0f : total_v[k]);
    length_v[k] = fg::clamp(chosen_total_v[k], eps, fg::infinity<float>());
    ratio_length_v[k] = fg::divide(1.0f, length_v[k]);
  }

#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 16 * part + threadIdx.y;
    const int j2 = at;
    const auto input_v = fg::widen(input_row[part]);
    fg::Vec<float, 2> out_v;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float input = input_v[k];
      out_v[k] = input * ratio_length_v[k];
    }
    fg::store_vector<2>(out_ptr + (j0 * out_stride0 + j1 + j2 * out_stride2), out_v);
  }
}
