// fusegen emit cosine_similarity --which forward --dtype bfloat16 --shape x1=512,3072 --shape x2=512,3072
#include "fusegen.cuh"

// cosine_similarity, forward                                  declared in ops/distances.py
//   total = sum[d1](x1 * x2)
//   total_2 = sum[d1](x1 * x1)
//   total_3 = sum[d1](x2 * x2)
//   same_total_2 = total_2 == 0
//   length = where(same_total_2, total_2, sqrt_rn(where(same_total_2, 1, total_2)))
//   ratio_total = total / (length + stop_gradient(where(length < eps, eps - length, 0)))
//   same_total_3 = total_3 == 0
//   length_2 = where(same_total_3, total_3, sqrt_rn(where(same_total_3, 1, total_3)))
//   out = ratio_total / (length_2 + stop_gradient(where(length_2 < eps, eps - length_2, 0)))
// rows: 192 threads a row over D1, which stays in registers: read once
extern "C" __global__ __launch_bounds__(192, 5)
void cosine_similarity_forward_bf16(const bf16* __restrict__ x1_ptr,  // [D0, D1]
                                    const bf16* __restrict__ x2_ptr,  // [D0, D1]
                                    bf16* __restrict__ out_ptr,       // [D0]
                                    float eps, int m, int n, int x1_stride0, int x2_stride0) {
  const int row = int(blockIdx.x);
  fg::Raw<bf16, 8> x1_row[2];
  fg::Raw<bf16, 8> x2_row[2];
  const int j0 = row;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    x1_row[part] = fg::load_raw<8>(x1_ptr + j0 * x1_stride0 + j1);
    x2_row[part] = fg::load_raw<8>(x2_ptr + j0 * x2_stride0 + j1);
  }

  float total = 0;
  float total_2 = 0;
  float total_3 = 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const auto x1_v = fg::widen(x1_row[part]);
    const auto x2_v = fg::widen(x2_row[part]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x1 = x1_v[k];
      const float x2 = x2_v[k];
      total += x1 * x2;
      total_2 += x1 * x1;
      total_3 += x2 * x2;
    }
  }
  fg::row_sum<192, 1, 0>(total, total_2, total_3);
  const bool same_total_2 = total_2 == 0.0f;
  const float length = same_total_2 ? total_2 : fg::sqrt(same_total_2 ? 1.0f : total_2);
  const float ratio_total = fg::divide(total, length + (length < eps ? eps - length : 0.0f));
  const bool same_total_3 = total_3 == 0.0f;
  const float length_2 = same_total_3 ? total_3 : fg::sqrt(same_total_3 ? 1.0f : total_3);

  if (threadIdx.x == 0) {
    fg::store(out_ptr + j0, fg::divide(ratio_total, length_2 + (length_2 < eps ? eps - length_2 : 0.0f)));
  }
}
