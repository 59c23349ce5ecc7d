// fusegen emit normalize --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// normalize, forward                                          declared in ops/distances.py
//   total = sum[d1](input * input)
//   same_total = total == 0
//   chosen_total = where(same_total, total, sqrt(where(same_total, 1, total)))
//   length = clamp(chosen_total, eps, inf)
//   ratio_length = 1 / length
//   out = input * ratio_length
// rows: 96 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(96, 14)
void normalize_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                            bf16* __restrict__ out_ptr,          // [D0, D1]
                            float eps, int m, int n, int input_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][96]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (96 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      total += input * input;
    }
  }
  fg::row_sum<96, 1, 0>(total);
  const bool same_total = total == 0.0f;
  const float chosen_total = same_total ? total : fg::fast_sqrt(same_total ? 1.0f : total);
  const float length = fg::clamp(chosen_total, eps, fg::infinity<float>());
  const float ratio_length = fg::divide(1.0f, length);

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (96 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      out_v[k] = input * ratio_length;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
