// fusegen emit cosine_similarity --which backward --dtype bfloat16 --shape x1=512,3072 --shape x2=512,3072
#include "fusegen.cuh"

// cosine_similarity, backward                                 declared in ops/distances.py
//   same_total_2 = total_2 == 0
//   sqrt_total_2 = sqrt_rn(total_2)
//   length = where(same_total_2, total_2, sqrt_total_2)
//   sum_length = length + stop_gradient(where(length < eps, eps - length, 0))
//   same_total_3 = total_3 == 0
//   sqrt_total_3 = sqrt_rn(total_3)
//   length_2 = where(same_total_3, total_3, sqrt_total_3)
//   sum_length_2 = length_2 + stop_gradient(where(length_2 < eps, eps - length_2, 0))
//   ratio_sum_length_2 = d_out / sum_length / sum_length_2
//   prod_d_out = 2 * d_out
//   ratio_total = total / sum_length
//   chosen_same_total_2 = where(same_total_2, 1, 0.5 / sqrt_total_2)
//   ratio_sum_length = prod_d_out * ratio_total * chosen_same_total_2 / sum_length
//   ratio_sum_length_2_2 = ratio_sum_length / sum_length_2
//   out = ratio_total / sum_length_2
//   chosen_same_total_3 = where(same_total_3, 1, 0.5 / sqrt_total_3)
//   ratio_sum_length_2_3 = prod_d_out * out * chosen_same_total_3 / sum_length_2
//   prod_2 = x1 * ratio_sum_length_2_2
//   prod_3 = x2 * ratio_sum_length_2_3
//   d_x1 = x2 * ratio_sum_length_2 - prod_2
//   d_x2 = x1 * ratio_sum_length_2 - prod_3
// rows: elementwise, D1 in pieces: what a row's elements have in common is computed once for each piece
extern "C" __global__ __launch_bounds__(192, 5)
void cosine_similarity_backward_bf16(const bf16* __restrict__ x1_ptr,        // [D0, D1]
                                     const bf16* __restrict__ x2_ptr,        // [D0, D1]
                                     const bf16* __restrict__ d_out_ptr,     // [D0]
                                     const float* __restrict__ total_ptr,    // [D0]
                                     const float* __restrict__ total_2_ptr,  // [D0]
                                     const float* __restrict__ total_3_ptr,  // [D0]
                                     bf16* __restrict__ d_x1_ptr,            // [D0, D1]
                                     bf16* __restrict__ d_x2_ptr,            // [D0, D1]
                                     float eps, int m, int n, int x1_stride0, int x2_stride0, int d_x1_stride0,
                                     int d_x2_stride0) {
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const int row = int(blockIdx.x);
  fg::Raw<bf16, 8> x1_row[2];
  fg::Raw<bf16, 8> x2_row[2];
  const int j0 = row;
  const float d_out = fg::load(d_out_ptr + j0);
  const float total = fg::load(total_ptr + j0);
  const float total_2 = fg::load(total_2_ptr + j0);
  const float total_3 = fg::load(total_3_ptr + j0);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    x1_row[part] = fg::load_raw<8>(x1_ptr + j0 * x1_stride0 + j1);
    x2_row[part] = fg::load_raw<8>(x2_ptr + j0 * x2_stride0 + j1);
  }
  const bool same_total_2 = total_2 == 0.0f;
  const float sqrt_total_2 = fg::sqrt(total_2);
  const float length = same_total_2 ? total_2 : sqrt_total_2;
  const float sum_length = length + (length < eps ? eps - length : 0.0f);
  const bool same_total_3 = total_3 == 0.0f;
  const float sqrt_total_3 = fg::sqrt(total_3);
  const float length_2 = same_total_3 ? total_3 : sqrt_total_3;
  const float sum_length_2 = length_2 + (length_2 < eps ? eps - length_2 : 0.0f);
  const float ratio_sum_length_2 = fg::divide(fg::divide(d_out, sum_length), sum_length_2);
  const float prod_d_out = 2.0f * d_out;
  const float ratio_total = fg::divide(total, sum_length);
  const float chosen_same_total_2 = same_total_2 ? 1.0f : fg::divide(0.5f, sqrt_total_2);
  const float ratio_sum_length = fg::divide(prod_d_out * ratio_total * chosen_same_total_2, sum_length);
  const float ratio_sum_length_2_2 = fg::divide(ratio_sum_length, sum_length_2);
  const float out = fg::divide(ratio_total, sum_length_2);
  const float chosen_same_total_3 = same_total_3 ? 1.0f : fg::divide(0.5f, sqrt_total_3);
  const float ratio_sum_length_2_3 = fg::divide(prod_d_out * out * chosen_same_total_3, sum_length_2);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto x1_v = fg::widen(x1_row[part]);
    const auto x2_v = fg::widen(x2_row[part]);
    fg::Vec<float, 8> d_x1_v;
    fg::Vec<float, 8> d_x2_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float x1 = x1_v[k];
      const float x2 = x2_v[k];
      const float prod_2 = x1 * ratio_sum_length_2_2;
      const float prod_3 = x2 * ratio_sum_length_2_3;
      d_x1_v[k] = x2 * ratio_sum_length_2 - prod_2;
      d_x2_v[k] = x1 * ratio_sum_length_2 - prod_3;
    }
    fg::store_vector<8>(d_x1_ptr + (j0 * d_x1_stride0 + j1), d_x1_v);
    fg::store_vector<8>(d_x2_ptr + (j0 * d_x2_stride0 + j1), d_x2_v);
  }
}
