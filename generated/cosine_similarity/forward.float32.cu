// fusegen emit cosine_similarity --which forward --dtype float32 --shape x1=512,3072 --shape x2=512,3072
#include "fusegen.cuh"

// cosine_similarity, forward                                  declared in ops/distances.py
//   total = sum[d1](x1 * x2)
//   total_2 = sum[d1](x1 * x1)
//   total_3 = sum[d1](x2 * x2)
//   same_total_2 = total_2 == 0
//   length = where(same_total_2, total_2, sqrt(where(same_total_2, 1, total_2)))
//   ratio_total = total / (length + stop_gradient(where(length < eps, eps - length, 0)))
//   same_total_3 = total_3 == 0
//   length_2 = where(same_total_3, total_3, sqrt(where(same_total_3, 1, total_3)))
//   out = ratio_total / (length_2 + stop_gradient(where(length_2 < eps, eps - length_2, 0)))
// row: a block a result, reduced over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void cosine_similarity_forward_f32(const float* __restrict__ x1_ptr,  // [D0, D1]
                                   const float* __restrict__ x2_ptr,  // [D0, D1]
                                   float* __restrict__ out_ptr,       // [D0]
                                   float eps, int m, int n, int x1_stride0, int x2_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  fg::Chains<float> total_chains;
  fg::Chains<float> total_2_chains;
  fg::Chains<float> total_3_chains;
  for (int at = 4 * threadIdx.x; at < n; at += 1024) {
    const int j1 = at;
    const auto x1_v = fg::load_vector<4>(x1_ptr + j0 * x1_stride0 + j1);
    const auto x2_v = fg::load_vector<4>(x2_ptr + j0 * x2_stride0 + j1);
    float total_part = 0;
    float total_2_part = 0;
    float total_3_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x1 = x1_v[k];
      const float x2 = x2_v[k];
      total_part += x1 * x2;
      total_2_part += x1 * x1;
      total_3_part += x2 * x2;
    }
    total_chains.add(total_part);
    total_2_chains.add(total_2_part);
    total_3_chains.add(total_3_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());
  const float total_2 = fg::block_sum<256>(total_2_chains.total());
  const float total_3 = fg::block_sum<256>(total_3_chains.total());

  if (threadIdx.x == 0) {
    const bool same_total_2 = total_2 == 0.0f;
    const float length = same_total_2 ? total_2 : fg::sqrt(same_total_2 ? 1.0f : total_2);
    const float ratio_total = fg::divide(total, length + (length < eps ? eps - length : 0.0f));
    const bool same_total_3 = total_3 == 0.0f;
    const float length_2 = same_total_3 ? total_3 : fg::sqrt(same_total_3 ? 1.0f : total_3);
    fg::store(out_ptr + j0, fg::divide(ratio_total, length_2 + (length_2 < eps ? eps - length_2 : 0.0f)));
  }
}
