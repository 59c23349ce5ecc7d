// fusegen emit triplet_margin_loss --which forward --dtype float32 --shape anchor=512,3072 --shape positive=512,3072
//     --shape negative=512,3072
#include "fusegen.cuh"

// triplet_margin_loss, forward                                declared in ops/margins.py
//   sum_eps = anchor - positive + eps
//   sum_eps_2 = anchor - negative + eps
//   total_2 = sum[d1](sum_eps * sum_eps)
//   total_3 = sum[d1](sum_eps_2 * sum_eps_2)
// row: a block a result, reduced over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void triplet_margin_loss_forward_f32_total_2_and_1_more(const float* __restrict__ anchor_ptr,    // [D0, D1]
                                                        const float* __restrict__ positive_ptr,  // [D0, D1]
                                                        const float* __restrict__ negative_ptr,  // [D0, D1]
                                                        float* __restrict__ total_2_ptr,         // [D0]
                                                        float* __restrict__ total_3_ptr,         // [D0]
                                                        float eps, int m, int n, int anchor_stride0,
                                                        int positive_stride0, int negative_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  fg::Chains<float> total_2_chains;
  fg::Chains<float> total_3_chains;
  for (int at = 4 * threadIdx.x; at < n; at += 1024) {
    const int j1 = at;
    const auto anchor_v = fg::load_vector<4>(anchor_ptr + j0 * anchor_stride0 + j1);
    const auto positive_v = fg::load_vector<4>(positive_ptr + j0 * positive_stride0 + j1);
    const auto negative_v = fg::load_vector<4>(negative_ptr + j0 * negative_stride0 + j1);
    float total_2_part = 0;
    float total_3_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float anchor = anchor_v[k];
      const float positive = positive_v[k];
      const float negative = negative_v[k];
      const float sum_eps = anchor - positive + eps;
      const float sum_eps_2 = anchor - negative + eps;
      total_2_part += sum_eps * sum_eps;
      total_3_part += sum_eps_2 * sum_eps_2;
    }
    total_2_chains.add(total_2_part);
    total_3_chains.add(total_3_part);
  }
  const float total_2 = fg::block_sum<256>(total_2_chains.total());
  const float total_3 = fg::block_sum<256>(total_3_chains.total());

  if (threadIdx.x == 0) {
    fg::store(total_2_ptr + j0, total_2);
    fg::store(total_3_ptr + j0, total_3);
  }
}

// triplet_margin_loss, forward                                declared in ops/margins.py
//   same_total_2 = total_2 == 0
//   near = where(same_total_2, total_2, sqrt(where(same_total_2, 1, total_2)))
//   same_total_3 = total_3 == 0
//   far = where(same_total_3, total_3, sqrt(where(same_total_3, 1, total_3)))
//   diff_far = margin + near - far
//   loss = where(diff_far < 0, 0, diff_far)
//   total = sum[d0](loss)
//   out = total / float32(D0)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void triplet_margin_loss_forward_f32_out(const float* total_2_ptr,     // [D0]
                                         const float* total_3_ptr,     // [D0]
                                         float* __restrict__ out_ptr,  // []
                                         float margin, int64_t D0, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_chains;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto total_2_v = fg::load_vector<4>(total_2_ptr + at);
    const auto total_3_v = fg::load_vector<4>(total_3_ptr + at);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float total_2 = total_2_v[k];
      const float total_3 = total_3_v[k];
      const bool same_total_2 = total_2 == 0.0f;
      const float near = fg::select(same_total_2, total_2, fg::sqrt(same_total_2 ? 1.0f : total_2));
      const bool same_total_3 = total_3 == 0.0f;
      const float far = fg::select(same_total_3, total_3, fg::sqrt(same_total_3 ? 1.0f : total_3));
      const float diff_far = margin + near - far;
      const float loss = diff_far < 0.0f ? 0.0f : diff_far;
      total_part += loss;
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide_by_count(total, float(D0)));
  }
}
