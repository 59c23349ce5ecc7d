// fusegen emit triplet_margin_loss --which backward --dtype bfloat16 --shape anchor=512,3072
//     --shape positive=512,3072 --shape negative=512,3072
#include "fusegen.cuh"

// triplet_margin_loss, backward                               declared in ops/margins.py
//   same_total = total == 0
//   sqrt_value = sqrt(where(same_total, 1, total))
//   near = where(same_total, total, sqrt_value)
//   same_total_2 = total_2 == 0
//   sqrt_value_2 = sqrt(where(same_total_2, 1, total_2))
//   far = where(same_total_2, total_2, sqrt_value_2)
//   diff_far = margin + near - far
//   below_diff_far = diff_far < 0
//   prod_d_out = d_out * (1 / float32(D0))
//   chosen_same_total_2 = where(same_total_2, -1, -(where(same_total_2, 0, 0.5) / sqrt_value_2))
//   prod = prod_d_out * chosen_same_total_2
//   prod_anchor = 2 * anchor
//   prod_eps = 2 * eps
//   sum = prod_anchor + prod_eps
//   prod_negative = 2 * negative
//   prod_2 = prod_d_out * where(same_total, 1, where(same_total, 0, 0.5) / sqrt_value)
//   prod_positive = 2 * positive
//   chosen = where(below_diff_far, 0, prod_2 * (sum - prod_positive))
//   prod_3 = prod_2 * (prod_positive - prod_anchor - prod_eps)
//   d_anchor = where(below_diff_far, 0, prod * (sum - prod_negative)) + chosen
//   d_positive = where(below_diff_far, 0, prod_3)
//   d_negative = where(below_diff_far, 0, prod * (prod_negative - prod_anchor - prod_eps))
// elementwise: 8 elements a thread; total, total_2 broadcast; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void triplet_margin_loss_backward_bf16(const bf16* __restrict__ anchor_ptr,    // [D0, D1]
                                       const bf16* __restrict__ positive_ptr,  // [D0, D1]
                                       const bf16* __restrict__ negative_ptr,  // [D0, D1]
                                       const bf16* __restrict__ d_out_ptr,     // []
                                       const float* __restrict__ total_ptr,    // [D0]
                                       const float* __restrict__ total_2_ptr,  // [D0]
                                       bf16* __restrict__ d_anchor_ptr,        // [D0, D1]
                                       bf16* __restrict__ d_positive_ptr,      // [D0, D1]
                                       bf16* __restrict__ d_negative_ptr,      // [D0, D1]
                                       float margin, float eps, int64_t D0, int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto anchor_v = fg::load_vector<8>(anchor_ptr + at);
  const auto positive_v = fg::load_vector<8>(positive_ptr + at);
  const auto negative_v = fg::load_vector<8>(negative_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  const float total = fg::load(total_ptr + j0);
  const float total_2 = fg::load(total_2_ptr + j0);
  fg::Vec<float, 8> d_anchor_v;
  fg::Vec<float, 8> d_positive_v;
  fg::Vec<float, 8> d_negative_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float anchor = anchor_v[k];
    const float positive = positive_v[k];
    const float negative = negative_v[k];
    const bool same_total = total == 0.0f;
    const float sqrt_value = sqrtf(same_total ? 1.0f : total);
    const float near = same_total ? total : sqrt_value;
    const bool same_total_2 = total_2 == 0.0f;
    const float sqrt_value_2 = sqrtf(same_total_2 ? 1.0f : total_2);
    const float far = same_total_2 ? total_2 : sqrt_value_2;
    const float diff_far = margin + near - far;
    const bool below_diff_far = diff_far < 0.0f;
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0));
    const float chosen_same_total_2 = same_total_2 ? -1.0f : -((same_total_2 ? 0.0f : 0.5f) / sqrt_value_2);
    const float prod = prod_d_out * chosen_same_total_2;
    const float prod_anchor = 2.0f * anchor;
    const float prod_eps = 2.0f * eps;
    const float sum = prod_anchor + prod_eps;
    const float prod_negative = 2.0f * negative;
    const float prod_2 = prod_d_out * (same_total ? 1.0f : (same_total ? 0.0f : 0.5f) / sqrt_value);
    const float prod_positive = 2.0f * positive;
    const float chosen = below_diff_far ? 0.0f : prod_2 * (sum - prod_positive);
    const float prod_3 = prod_2 * (prod_positive - prod_anchor - prod_eps);
    d_anchor_v[k] = (below_diff_far ? 0.0f : prod * (sum - prod_negative)) + chosen;
    d_positive_v[k] = below_diff_far ? 0.0f : prod_3;
    d_negative_v[k] = below_diff_far ? 0.0f : prod * (prod_negative - prod_anchor - prod_eps);
  }
  fg::store_vector<8>(d_anchor_ptr + at, d_anchor_v);
  fg::store_vector<8>(d_positive_ptr + at, d_positive_v);
  fg::store_vector<8>(d_negative_ptr + at, d_negative_v);
}
