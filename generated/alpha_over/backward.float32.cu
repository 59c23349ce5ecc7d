// fusegen emit alpha_over --which backward --dtype float32 --shape foreground=8,3,256,256
//     --shape foreground_alpha=8,1,256,256 --shape background=8,3,256,256 --shape background_alpha=8,1,256,256
#include "fusegen.cuh"

// alpha_over, backward                                        declared in ops/blends.py
//   diff_foreground_alpha = 1 - foreground_alpha
//   behind = background_alpha * diff_foreground_alpha
//   alpha = foreground_alpha + behind
//   same_alpha = alpha == 0
//   ratio_alpha_2 = (foreground - background * background_alpha) / alpha
//   ratio_alpha = (foreground_alpha * foreground + behind * background) / alpha
//   diff_background_alpha = 1 - background_alpha
//   ratio = diff_background_alpha / alpha
//   diff = ratio_alpha_2 - ratio_alpha * ratio
//   ratio_2 = diff_foreground_alpha / alpha
//   ratio_alpha_3 = ratio_alpha * ratio_2
//   diff_2 = background * ratio_2 - ratio_alpha_3
//   ratio_3 = foreground_alpha / alpha
//   ratio_behind_alpha = behind / alpha
//   d_foreground = where(same_alpha, 0, d_colour * ratio_3)
//   d_background = where(same_alpha, 0, d_colour * ratio_behind_alpha)
//   sum_d_foreground_alpha = sum[d1](where(same_alpha, 0, d_colour * diff))
//   sum_d_background_alpha = sum[d1](where(same_alpha, 0, d_colour * diff_2))
//   diff_background_alpha_2 = 1 - background_alpha
//   diff_foreground_alpha_2 = 1 - foreground_alpha
//   d_foreground_alpha = d_alpha * diff_background_alpha_2 + sum_d_foreground_alpha
//   d_background_alpha = d_alpha * diff_foreground_alpha_2 + sum_d_background_alpha
// column: 1024 neighbouring results a block, reduced over D1
extern "C" __global__ __launch_bounds__(256, 2)
void alpha_over_backward_f32(const float* __restrict__ foreground_ptr,        // [D0, D1, D2, D3]
                             const float* __restrict__ foreground_alpha_ptr,  // [D0, 1, D2, D3]
                             const float* __restrict__ background_ptr,        // [D0, D1, D2, D3]
                             const float* __restrict__ background_alpha_ptr,  // [D0, 1, D2, D3]
                             const float* __restrict__ d_colour_ptr,          // [D0, D1, D2, D3]
                             const float* __restrict__ d_alpha_ptr,           // [D0, 1, D2, D3]
                             float* __restrict__ d_foreground_ptr,            // [D0, D1, D2, D3]
                             float* __restrict__ d_background_ptr,            // [D0, D1, D2, D3]
                             float* __restrict__ d_foreground_alpha_ptr,      // [D0, 1, D2, D3]
                             float* __restrict__ d_background_alpha_ptr,      // [D0, 1, D2, D3]
                             int m, int n, fg::Divisor n1, int foreground_stride0, int foreground_stride2,
                             int foreground_alpha_stride0, int background_stride0, int background_stride2,
                             int background_alpha_stride0, int d_colour_stride0, int d_colour_stride2,
                             int d_alpha_stride0, int d_foreground_stride0, int d_foreground_stride2,
                             int d_background_stride0, int d_background_stride2, int d_foreground_alpha_stride0,
                             int d_background_alpha_stride0) {
  // A thread owns 4 neighbouring results and adds up their elements by itself.
  const int result = int(blockIdx.x) * 1024 + 4 * threadIdx.x;
  const bool inside = result < m;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  fg::Vec<float, 4> sum_d_foreground_alpha_v = {};
  fg::Vec<float, 4> sum_d_background_alpha_v = {};
  if (inside) {
    const auto foreground_alpha_v = fg::load_vector<4>(foreground_alpha_ptr + j0 * foreground_alpha_stride0 + j1);
    const auto background_alpha_v = fg::load_vector<4>(background_alpha_ptr + j0 * background_alpha_stride0 + j1);
    fg::Vec<float, 4> behind_v;
    fg::Vec<float, 4> alpha_v;
    fg::Vec<bool, 4> same_alpha_v;
    fg::Vec<float, 4> ratio_v;
    fg::Vec<float, 4> ratio_2_v;
    fg::Vec<float, 4> ratio_3_v;
    fg::Vec<float, 4> ratio_behind_alpha_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float foreground_alpha = foreground_alpha_v[k];
      const float background_alpha = background_alpha_v[k];
      const float diff_foreground_alpha = 1.0f - foreground_alpha;
      const float behind = background_alpha * diff_foreground_alpha;
      behind_v[k] = behind;
      const float alpha = foreground_alpha + behind;
      alpha_v[k] = alpha;
      const bool same_alpha = alpha == 0.0f;
      same_alpha_v[k] = same_alpha;
      const float diff_background_alpha = 1.0f - background_alpha;
      const float ratio = fg::divide(diff_background_alpha, alpha);
      ratio_v[k] = ratio;
      const float ratio_2 = fg::divide(diff_foreground_alpha, alpha);
      ratio_2_v[k] = ratio_2;
      const float ratio_3 = fg::divide(foreground_alpha, alpha);
      ratio_3_v[k] = ratio_3;
      const float ratio_behind_alpha = fg::divide(behind, alpha);
      ratio_behind_alpha_v[k] = ratio_behind_alpha;
    }
#pragma unroll 4
    for (int at = 0; at < n; ++at) {
      const int j2 = at;
      const int foreground_at = j0 * foreground_stride0 + j1 + j2 * foreground_stride2;
      const auto foreground_v = fg::load_vector<4>(foreground_ptr + foreground_at);
      const int background_at = j0 * background_stride0 + j1 + j2 * background_stride2;
      const auto background_v = fg::load_vector<4>(background_ptr + background_at);
      const auto d_colour_v = fg::load_vector<4>(d_colour_ptr + j0 * d_colour_stride0 + j1 + j2 * d_colour_stride2);
      fg::Vec<float, 4> d_foreground_v;
      fg::Vec<float, 4> d_background_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float foreground_alpha = foreground_alpha_v[k];
        const float background_alpha = background_alpha_v[k];
        const float behind = behind_v[k];
        const float alpha = alpha_v[k];
        const bool same_alpha = same_alpha_v[k];
        const float ratio = ratio_v[k];
        const float ratio_2 = ratio_2_v[k];
        const float ratio_3 = ratio_3_v[k];
        const float ratio_behind_alpha = ratio_behind_alpha_v[k];
        const float foreground = foreground_v[k];
        const float background = background_v[k];
        const float d_colour = d_colour_v[k];
        const float ratio_alpha_2 = fg::divide(foreground - background * background_alpha, alpha);
        const float ratio_alpha = fg::divide(foreground_alpha * foreground + behind * background, alpha);
        const float diff = ratio_alpha_2 - ratio_alpha * ratio;
        const float ratio_alpha_3 = ratio_alpha * ratio_2;
        const float diff_2 = background * ratio_2 - ratio_alpha_3;
        d_foreground_v[k] = same_alpha ? 0.0f : d_colour * ratio_3;
        d_background_v[k] = same_alpha ? 0.0f : d_colour * ratio_behind_alpha;
        sum_d_foreground_alpha_v[k] += same_alpha ? 0.0f : d_colour * diff;
        sum_d_background_alpha_v[k] += same_alpha ? 0.0f : d_colour * diff_2;
      }
      const int d_foreground_at = j0 * d_foreground_stride0 + j1 + j2 * d_foreground_stride2;
      fg::store_vector<4>(d_foreground_ptr + d_foreground_at, d_foreground_v);
      const int d_background_at = j0 * d_background_stride0 + j1 + j2 * d_background_stride2;
      fg::store_vector<4>(d_background_ptr + d_background_at, d_background_v);
    }
  }

  if (inside) {
    const auto foreground_alpha_v = fg::load_vector<4>(foreground_alpha_ptr + j0 * foreground_alpha_stride0 + j1);
    const auto background_alpha_v = fg::load_vector<4>(background_alpha_ptr + j0 * background_alpha_stride0 + j1);
    const auto d_alpha_v = fg::load_vector<4>(d_alpha_ptr + j0 * d_alpha_stride0 + j1);
    fg::Vec<float, 4> d_foreground_alpha_v;
    fg::Vec<float, 4> d_background_alpha_v;
    for (int k = 0; k < 4; ++k) {
      const float sum_d_foreground_alpha = sum_d_foreground_alpha_v[k];
      const float sum_d_background_alpha = sum_d_background_alpha_v[k];
      const float foreground_alpha = foreground_alpha_v[k];
      const float background_alpha = background_alpha_v[k];
      const float d_alpha = d_alpha_v[k];
      const float diff_background_alpha_2 = 1.0f - background_alpha;
      const float diff_foreground_alpha_2 = 1.0f - foreground_alpha;
      d_foreground_alpha_v[k] = d_alpha * diff_background_alpha_2 + sum_d_foreground_alpha;
      d_background_alpha_v[k] = d_alpha * diff_foreground_alpha_2 + sum_d_background_alpha;
    }
    fg::store_vector<4>(d_foreground_alpha_ptr + (j0 * d_foreground_alpha_stride0 + j1), d_foreground_alpha_v);
    fg::store_vector<4>(d_background_alpha_ptr + (j0 * d_background_alpha_stride0 + j1), d_background_alpha_v);
  }
}
