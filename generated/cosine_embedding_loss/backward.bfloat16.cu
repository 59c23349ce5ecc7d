// fusegen emit cosine_embedding_loss --which backward --dtype bfloat16 --shape input1=512,3072
//     --shape input2=512,3072 --shape target=512
#include "fusegen.cuh"

// cosine_embedding_loss, backward                             declared in ops/margins.py
//   prod_d_out = d_out * (1 / float32(D0))
//   same_target = target == 1
//   square1 = total + 1e-12
//   rsqrt_square1 = rsqrt(square1)
//   square2 = total_2 + 1e-12
//   rsqrt_square2 = rsqrt(square2)
//   prod = rsqrt_square1 * rsqrt_square2
//   same_target_2 = target == -1
//   cos_ = total_3 * prod
//   diff_cos_margin = cos_ - margin
//   below_diff_cos_margin = diff_cos_margin < 0
//   chosen = where(same_target_2, where(below_diff_cos_margin, 0, prod), 0)
//   prod_2 = prod_d_out * where(same_target, -prod, chosen)
//   prod_total_3 = 0.5 * total_3
//   prod_3 = prod_total_3 * rsqrt_square1^3 * rsqrt_square2
//   chosen_2 = where(same_target_2, where(below_diff_cos_margin, 0, -prod_3), 0)
//   prod_4 = prod_d_out * where(same_target, prod_3, chosen_2) * (2 * input1)
//   prod_5 = prod_total_3 * rsqrt_square1 * rsqrt_square2^3
//   chosen_3 = where(same_target_2, where(below_diff_cos_margin, 0, -prod_5), 0)
//   prod_6 = prod_d_out * where(same_target, prod_5, chosen_3) * (2 * input2)
//   d_input1 = prod_2 * input2 + prod_4
//   d_input2 = prod_2 * input1 + prod_6
// elementwise: 8 elements a thread; target, total, total_2, total_3 broadcast; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void cosine_embedding_loss_backward_bf16_d_input1_and_1_more(const bf16* __restrict__ input1_ptr,    // [D0, D1]
                                                             const bf16* __restrict__ input2_ptr,    // [D0, D1]
                                                             const bf16* __restrict__ target_ptr,    // [D0]
                                                             const bf16* __restrict__ d_out_ptr,     // []
                                                             const float* __restrict__ total_ptr,    // [D0]
                                                             const float* __restrict__ total_2_ptr,  // [D0]
                                                             const float* __restrict__ total_3_ptr,  // [D0]
                                                             bf16* __restrict__ d_input1_ptr,        // [D0, D1]
                                                             bf16* __restrict__ d_input2_ptr,        // [D0, D1]
                                                             float margin, int64_t D0, int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto input1_v = fg::load_vector<8>(input1_ptr + at);
  const auto input2_v = fg::load_vector<8>(input2_ptr + at);
  const float target = fg::load(target_ptr + j0);
  const float d_out = fg::load(d_out_ptr);
  const float total = fg::load(total_ptr + j0);
  const float total_2 = fg::load(total_2_ptr + j0);
  const float total_3 = fg::load(total_3_ptr + j0);
  fg::Vec<float, 8> d_input1_v;
  fg::Vec<float, 8> d_input2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input1 = input1_v[k];
    const float input2 = input2_v[k];
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0));
    const bool same_target = target == 1.0f;
    const float square1 = total + 1e-12f;
    const float rsqrt_square1 = rsqrtf(square1);
    const float square2 = total_2 + 1e-12f;
    const float rsqrt_square2 = rsqrtf(square2);
    const float prod = rsqrt_square1 * rsqrt_square2;
    const bool same_target_2 = target == -1.0f;
    const float cos_ = total_3 * prod;
    const float diff_cos_margin = cos_ - margin;
    const bool below_diff_cos_margin = diff_cos_margin < 0.0f;
    const float chosen = same_target_2 ? (below_diff_cos_margin ? 0.0f : prod) : 0.0f;
    const float prod_2 = prod_d_out * (same_target ? -prod : chosen);
    const float prod_total_3 = 0.5f * total_3;
    const float prod_3 = prod_total_3 * (rsqrt_square1 * rsqrt_square1 * rsqrt_square1) * rsqrt_square2;
    const float chosen_2 = same_target_2 ? (below_diff_cos_margin ? 0.0f : -prod_3) : 0.0f;
    const float prod_4 = prod_d_out * (same_target ? prod_3 : chosen_2) * (2.0f * input1);
    const float prod_5 = prod_total_3 * rsqrt_square1 * (rsqrt_square2 * rsqrt_square2 * rsqrt_square2);
    const float chosen_3 = same_target_2 ? (below_diff_cos_margin ? 0.0f : -prod_5) : 0.0f;
    const float prod_6 = prod_d_out * (same_target ? prod_5 : chosen_3) * (2.0f * input2);
    d_input1_v[k] = prod_2 * input2 + prod_4;
    d_input2_v[k] = prod_2 * input1 + prod_6;
  }
  fg::store_vector<8>(d_input1_ptr + at, d_input1_v);
  fg::store_vector<8>(d_input2_ptr + at, d_input2_v);
}

// cosine_embedding_loss, backward                             declared in ops/margins.py
//   d_target = 0
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void cosine_embedding_loss_backward_bf16_d_target(bf16* __restrict__ d_target_ptr,  // [D0]
                                                  int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  fg::Vec<float, 8> d_target_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    d_target_v[k] = 0.0f;
  }
  fg::store_vector<8>(d_target_ptr + at, d_target_v);
}
