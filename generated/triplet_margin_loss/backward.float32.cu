// fusegen emit triplet_margin_loss --which backward --dtype float32 --shape anchor=512,3072 --shape positive=512,3072
//     --shape negative=512,3072
#include "fusegen.cuh"

// triplet_margin_loss, backward                               declared in ops/margins.py
//   same_total_2 = total_2 == 0
//   sqrt_total_2 = sqrt(total_2)
//   near = where(same_total_2, total_2, sqrt_total_2)
//   same_total_3 = total_3 == 0
//   sqrt_total_3 = sqrt(total_3)
//   far = where(same_total_3, total_3, sqrt_total_3)
//   diff_far = margin + near - far
//   below_diff_far = diff_far < 0
//   prod_d_out = 2 * d_out
//   ratio = 1 / float32(D0)
//   prod = prod_d_out * where(same_total_3, -1, -(0.5 / sqrt_total_3)) * ratio
//   prod_3 = prod_d_out * where(same_total_2, 1, 0.5 / sqrt_total_2) * ratio
//   sum_eps_2 = anchor - negative + eps
//   prod_2 = sum_eps_2 * prod
//   sum_eps = anchor - positive + eps
//   prod_4 = sum_eps * prod_3
//   d_anchor = where(below_diff_far, 0, prod_2 + prod_4)
//   d_positive = where(below_diff_far, 0, -prod_4)
//   d_negative = where(below_diff_far, 0, -prod_2)
// rows: elementwise, D1 in pieces: what a row's elements have in common is computed once for each piece
extern "C" __global__ __launch_bounds__(256, 3)
void triplet_margin_loss_backward_f32(const float* __restrict__ anchor_ptr,    // [D0, D1]
                                      const float* __restrict__ positive_ptr,  // [D0, D1]
                                      const float* __restrict__ negative_ptr,  // [D0, D1]
                                      const float* __restrict__ d_out_ptr,     // []
                                      const float* __restrict__ total_2_ptr,   // [D0]
                                      const float* __restrict__ total_3_ptr,   // [D0]
                                      float* __restrict__ d_anchor_ptr,        // [D0, D1]
                                      float* __restrict__ d_positive_ptr,      // [D0, D1]
                                      float* __restrict__ d_negative_ptr,      // [D0, D1]
                                      float margin, float eps, int64_t D0, int m, int n, int anchor_stride0,
                                      int positive_stride0, int negative_stride0, int d_anchor_stride0,
                                      int d_positive_stride0, int d_negative_stride0) {
  // 256 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const float d_out = fg::load(d_out_ptr);
  const int row = int(blockIdx.x);
  fg::Raw<float, 4> anchor_row[3];
  fg::Raw<float, 4> positive_row[3];
  fg::Raw<float, 4> negative_row[3];
  const int j0 = row;
  const float total_2 = fg::load(total_2_ptr + j0);
  const float total_3 = fg::load(total_3_ptr + j0);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    anchor_row[part] = fg::load_raw<4>(anchor_ptr + j0 * anchor_stride0 + j1);
    positive_row[part] = fg::load_raw<4>(positive_ptr + j0 * positive_stride0 + j1);
    negative_row[part] = fg::load_raw<4>(negative_ptr + j0 * negative_stride0 + j1);
  }
  const bool same_total_2 = total_2 == 0.0f;
  const float sqrt_total_2 = fg::sqrt(total_2);
  const float near = same_total_2 ? total_2 : sqrt_total_2;
  const bool same_total_3 = total_3 == 0.0f;
  const float sqrt_total_3 = fg::sqrt(total_3);
  const float far = same_total_3 ? total_3 : sqrt_total_3;
  const float diff_far = margin + near - far;
  const bool below_diff_far = diff_far < 0.0f;
  const float prod_d_out = 2.0f * d_out;
  const float ratio = fg::divide_by_count(1.0f, float(D0));
  const float prod = prod_d_out * (same_total_3 ? -1.0f : -fg::divide(0.5f, sqrt_total_3)) * ratio;
  const float prod_3 = prod_d_out * (same_total_2 ? 1.0f : fg::divide(0.5f, sqrt_total_2)) * ratio;

#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto anchor_v = fg::widen(anchor_row[part]);
    const auto positive_v = fg::widen(positive_row[part]);
    const auto negative_v = fg::widen(negative_row[part]);
    fg::Vec<float, 4> d_anchor_v;
    fg::Vec<float, 4> d_positive_v;
    fg::Vec<float, 4> d_negative_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float anchor = anchor_v[k];
      const float positive = positive_v[k];
      const float negative = negative_v[k];
      const float sum_eps_2 = anchor - negative + eps;
      const float prod_2 = sum_eps_2 * prod;
      const float sum_eps = anchor - positive + eps;
      const float prod_4 = sum_eps * prod_3;
      d_anchor_v[k] = below_diff_far ? 0.0f : prod_2 + prod_4;
      d_positive_v[k] = below_diff_far ? 0.0f : -prod_4;
      d_negative_v[k] = below_diff_far ? 0.0f : -prod_2;
    }
    fg::store_vector<4>(d_anchor_ptr + (j0 * d_anchor_stride0 + j1), d_anchor_v);
    fg::store_vector<4>(d_positive_ptr + (j0 * d_positive_stride0 + j1), d_positive_v);
    fg::store_vector<4>(d_negative_ptr + (j0 * d_negative_stride0 + j1), d_negative_v);
  }
}
