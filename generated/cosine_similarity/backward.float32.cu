// fusegen emit cosine_similarity --which backward --dtype float32 --shape x1=512,3072 --shape x2=512,3072
#include "fusegen.cuh"

// cosine_similarity, backward                                 declared in ops/distances.py
//   same_total_2 = total_2 == 0
//   sqrt_value = sqrt(where(same_total_2, 1, total_2))
//   chosen_total_2 = where(same_total_2, total_2, sqrt_value)
//   barrier_value = barrier(where(chosen_total_2 < eps, eps - chosen_total_2, 0))
//   sum = chosen_total_2 + barrier_value
//   same_total_3 = total_3 == 0
//   sqrt_value_2 = sqrt(where(same_total_3, 1, total_3))
//   chosen_total_3 = where(same_total_3, total_3, sqrt_value_2)
//   barrier_value_2 = barrier(where(chosen_total_3 < eps, eps - chosen_total_3, 0))
//   sum_2 = chosen_total_3 + barrier_value_2
//   prod = sum * sum_2
//   prod_d_out = d_out * (1 / prod)
//   ratio_total = total / prod
//   chosen_same_total_2 = where(same_total_2, 1, where(same_total_2, 0, 0.5) / sqrt_value)
//   prod_2 = d_out * (ratio_total / sum) * chosen_same_total_2 * (2 * x1)
//   chosen_same_total_3 = where(same_total_3, 1, where(same_total_3, 0, 0.5) / sqrt_value_2)
//   prod_3 = d_out * (ratio_total / sum_2) * chosen_same_total_3 * (2 * x2)
//   d_x1 = prod_d_out * x2 - prod_2
//   d_x2 = prod_d_out * x1 - prod_3
// elementwise: 4 elements a thread; d_out, total, total_2, total_3 broadcast
extern "C" __global__ __launch_bounds__(256)
void cosine_similarity_backward_f32(const float* __restrict__ x1_ptr,       // [D0, D1]
                                    const float* __restrict__ x2_ptr,       // [D0, D1]
                                    const float* __restrict__ d_out_ptr,    // [D0]
                                    const float* __restrict__ total_ptr,    // [D0]
                                    const float* __restrict__ total_2_ptr,  // [D0]
                                    const float* __restrict__ total_3_ptr,  // [D0]
                                    float* __restrict__ d_x1_ptr,           // [D0, D1]
                                    float* __restrict__ d_x2_ptr,           // [D0, D1]
                                    float eps, int n, fg::Divisor n1) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto x1_v = fg::load_vector<4>(x1_ptr + at);
  const auto x2_v = fg::load_vector<4>(x2_ptr + at);
  const float d_out = fg::load(d_out_ptr + j0);
  const float total = fg::load(total_ptr + j0);
  const float total_2 = fg::load(total_2_ptr + j0);
  const float total_3 = fg::load(total_3_ptr + j0);
  fg::Vec<float, 4> d_x1_v;
  fg::Vec<float, 4> d_x2_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float x1 = x1_v[k];
    const float x2 = x2_v[k];
    const bool same_total_2 = total_2 == 0.0f;
    const float sqrt_value = sqrtf(same_total_2 ? 1.0f : total_2);
    const float chosen_total_2 = same_total_2 ? total_2 : sqrt_value;
    const float barrier_value = (chosen_total_2 < eps ? eps - chosen_total_2 : 0.0f);
    const float sum = chosen_total_2 + barrier_value;
    const bool same_total_3 = total_3 == 0.0f;
    const float sqrt_value_2 = sqrtf(same_total_3 ? 1.0f : total_3);
    const float chosen_total_3 = same_total_3 ? total_3 : sqrt_value_2;
    const float barrier_value_2 = (chosen_total_3 < eps ? eps - chosen_total_3 : 0.0f);
    const float sum_2 = chosen_total_3 + barrier_value_2;
    const float prod = sum * sum_2;
    const float prod_d_out = d_out * (1.0f / prod);
    const float ratio_total = total / prod;
    const float chosen_same_total_2 = same_total_2 ? 1.0f : (same_total_2 ? 0.0f : 0.5f) / sqrt_value;
    const float prod_2 = d_out * (ratio_total / sum) * chosen_same_total_2 * (2.0f * x1);
    const float chosen_same_total_3 = same_total_3 ? 1.0f : (same_total_3 ? 0.0f : 0.5f) / sqrt_value_2;
    const float prod_3 = d_out * (ratio_total / sum_2) * chosen_same_total_3 * (2.0f * x2);
    d_x1_v[k] = prod_d_out * x2 - prod_2;
    d_x2_v[k] = prod_d_out * x1 - prod_3;
  }
  fg::store_vector<4>(d_x1_ptr + at, d_x1_v);
  fg::store_vector<4>(d_x2_ptr + at, d_x2_v);
}
