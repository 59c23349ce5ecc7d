// fusegen emit alpha_blend --which backward --dtype float32 --shape foreground=8,3,256,256
//     --shape background=8,3,256,256 --shape alpha=8,1,256,256
#include "fusegen.cuh"

// alpha_blend, backward                                       declared in ops/blends.py
//   d = foreground - background
//   sum_d_alpha = sum[d1](d_out * d)
//   d_alpha = sum_d_alpha
// serial: a thread a result, which sums over D1
extern "C" __global__ __launch_bounds__(256)
void alpha_blend_backward_f32_d_alpha(const float* __restrict__ foreground_ptr,  // [D0, D1, D2, D3]
                                      const float* __restrict__ background_ptr,  // [D0, D1, D2, D3]
                                      const float* __restrict__ d_out_ptr,       // [D0, D1, D2, D3]
                                      float* __restrict__ d_alpha_ptr,           // [D0, 1, D2, D3]
                                      int m, int n, fg::Divisor n1, int foreground_stride0, int foreground_stride2,
                                      int background_stride0, int background_stride2, int d_out_stride0,
                                      int d_out_stride2, int d_alpha_stride0) {
  // A thread owns one result and adds up its elements by itself.
  const int result = int(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  float sum_d_alpha = 0;
  for (int i = 0; i < n; ++i) {
    const int j2 = i;
    const float foreground = fg::load(foreground_ptr + j0 * foreground_stride0 + j1 + j2 * foreground_stride2);
    const float background = fg::load(background_ptr + j0 * background_stride0 + j1 + j2 * background_stride2);
    const float d_out = fg::load(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    const float d = foreground - background;
    sum_d_alpha += d_out * d;
  }

  fg::store(d_alpha_ptr + j0 * d_alpha_stride0 + j1, sum_d_alpha);
}

// alpha_blend, backward                                       declared in ops/blends.py
//   d_foreground = d_out * alpha
//   d_background = d_out * (1 - alpha)
// elementwise: 4 elements a thread; alpha broadcast
extern "C" __global__ __launch_bounds__(256)
void alpha_blend_backward_f32_d_foreground_and_1_more(const float* __restrict__ alpha_ptr,   // [D0, 1, D2, D3]
                                                      const float* __restrict__ d_out_ptr,   // [D0, D1, D2, D3]
                                                      float* __restrict__ d_foreground_ptr,  // [D0, D1, D2, D3]
                                                      float* __restrict__ d_background_ptr,  // [D0, D1, D2, D3]
                                                      int n, fg::Divisor n1, fg::Divisor n2, int alpha_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int i = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (i >= n) return;
  int rest = i;
  const int j2 = fg::take(rest, n2);
  fg::take(rest, n1);
  const int j0 = rest;

  const auto alpha_v = fg::load_vector<4>(alpha_ptr + j0 * alpha_stride0 + j2);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + i);
  fg::Vec<float, 4> d_foreground_v;
  fg::Vec<float, 4> d_background_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float alpha = alpha_v[k];
    const float d_out = d_out_v[k];
    d_foreground_v[k] = d_out * alpha;
    d_background_v[k] = d_out * (1.0f - alpha);
  }
  fg::store_vector<4>(d_foreground_ptr + i, d_foreground_v);
  fg::store_vector<4>(d_background_ptr + i, d_background_v);
}
