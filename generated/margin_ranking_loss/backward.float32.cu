// fusegen emit margin_ranking_loss --which backward --dtype float32 --shape input1=512,3072 --shape input2=512,3072
//     --shape target=512,3072
#include "fusegen.cuh"

// margin_ranking_loss, backward                               declared in ops/margins.py
//   diff_margin = margin - target * (input1 - input2)
//   below_diff_margin = diff_margin < 0
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   prod_target = prod_d_out * target
//   d_input1 = where(below_diff_margin, 0, -prod_target)
//   d_input2 = where(below_diff_margin, 0, prod_target)
//   d_target = where(below_diff_margin, 0, prod_d_out * (input2 - input1))
// elementwise: 4 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void margin_ranking_loss_backward_f32(const float* __restrict__ input1_ptr,  // [D0, D1]
                                      const float* __restrict__ input2_ptr,  // [D0, D1]
                                      const float* __restrict__ target_ptr,  // [D0, D1]
                                      const float* __restrict__ d_out_ptr,   // []
                                      float* __restrict__ d_input1_ptr,      // [D0, D1]
                                      float* __restrict__ d_input2_ptr,      // [D0, D1]
                                      float* __restrict__ d_target_ptr,      // [D0, D1]
                                      float margin, int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input1_v = fg::load_vector<4>(input1_ptr + at);
  const auto input2_v = fg::load_vector<4>(input2_ptr + at);
  const auto target_v = fg::load_vector<4>(target_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 4> d_input1_v;
  fg::Vec<float, 4> d_input2_v;
  fg::Vec<float, 4> d_target_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input1 = input1_v[k];
    const float input2 = input2_v[k];
    const float target = target_v[k];
    const float diff_margin = margin - target * (input1 - input2);
    const bool below_diff_margin = diff_margin < 0.0f;
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
    const float prod_target = prod_d_out * target;
    d_input1_v[k] = below_diff_margin ? 0.0f : -prod_target;
    d_input2_v[k] = below_diff_margin ? 0.0f : prod_target;
    d_target_v[k] = below_diff_margin ? 0.0f : prod_d_out * (input2 - input1);
  }
  fg::store_vector<4>(d_input1_ptr + at, d_input1_v);
  fg::store_vector<4>(d_input2_ptr + at, d_input2_v);
  fg::store_vector<4>(d_target_ptr + at, d_target_v);
}
