// fusegen emit alpha_blend --which backward --dtype bfloat16 --shape foreground=8,3,256,256
//     --shape background=8,3,256,256 --shape alpha=8,1,256,256
#include "fusegen.cuh"

// alpha_blend, backward                                       declared in ops/blends.py
//   d = foreground - background
//   d_foreground = d_out * alpha
//   d_background = d_out * (1 - alpha)
//   sum_d_alpha = sum[d1](d_out * d)
//   d_alpha = sum_d_alpha
// serial: a thread a result, reduced over D1
extern "C" __global__ __launch_bounds__(256)
void alpha_blend_backward_bf16(const bf16* __restrict__ foreground_ptr,  // [D0, D1, D2, D3]
                               const bf16* __restrict__ background_ptr,  // [D0, D1, D2, D3]
                               const bf16* __restrict__ alpha_ptr,       // [D0, 1, D2, D3]
                               const bf16* __restrict__ d_out_ptr,       // [D0, D1, D2, D3]
                               bf16* __restrict__ d_foreground_ptr,      // [D0, D1, D2, D3]
                               bf16* __restrict__ d_background_ptr,      // [D0, D1, D2, D3]
                               bf16* __restrict__ d_alpha_ptr,           // [D0, 1, D2, D3]
                               int m, int n, fg::Divisor n1, int foreground_stride0, int foreground_stride2,
                               int background_stride0, int background_stride2, int alpha_stride0, int d_out_stride0,
                               int d_out_stride2, int d_foreground_stride0, int d_foreground_stride2,
                               int d_background_stride0, int d_background_stride2, int d_alpha_stride0) {
  // A thread owns one result and adds up its elements by itself.
  const int result = int(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float alpha = fg::load(alpha_ptr + j0 * alpha_stride0 + j1);

  float sum_d_alpha = 0;
  for (int at = 0; at < n; ++at) {
    const int j2 = at;
    const float foreground = fg::load(foreground_ptr + j0 * foreground_stride0 + j1 + j2 * foreground_stride2);
    const float background = fg::load(background_ptr + j0 * background_stride0 + j1 + j2 * background_stride2);
    const float d_out = fg::load(d_out_ptr + j0 * d_out_stride0 + j1 + j2 * d_out_stride2);
    const float d = foreground - background;
    fg::store(d_foreground_ptr + j0 * d_foreground_stride0 + j1 + j2 * d_foreground_stride2, d_out * alpha);
    fg::store(d_background_ptr + j0 * d_background_stride0 + j1 + j2 * d_background_stride2, d_out * (1.0f - alpha));
    sum_d_alpha += d_out * d;
  }

  fg::store(d_alpha_ptr + j0 * d_alpha_stride0 + j1, sum_d_alpha);
}
