// fusegen emit alpha_blend --which forward --dtype bfloat16 --shape foreground=8,3,256,256
//     --shape background=8,3,256,256 --shape alpha=8,1,256,256
#include "fusegen.cuh"

// alpha_blend, forward                                        declared in ops/blends.py
//   d = foreground - background
//   diff_foreground = foreground - (1 - alpha) * d
//   out = where(abs(alpha) < 0.5, background + alpha * d, diff_foreground)
// elementwise: 8 elements a thread; alpha broadcast
extern "C" __global__ __launch_bounds__(256)
void alpha_blend_forward_bf16(const bf16* __restrict__ foreground_ptr,  // [D0, D1, D2, D3]
                              const bf16* __restrict__ background_ptr,  // [D0, D1, D2, D3]
                              const bf16* __restrict__ alpha_ptr,       // [D0, 1, D2, D3]
                              bf16* __restrict__ out_ptr,               // [D0, D1, D2, D3]
                              int n, fg::Divisor n1, fg::Divisor n2, int alpha_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j2 = fg::take(rest, n2);
  fg::take(rest, n1);
  const int j0 = rest;

  const auto foreground_v = fg::load_vector<8>(foreground_ptr + at);
  const auto background_v = fg::load_vector<8>(background_ptr + at);
  const auto alpha_v = fg::load_vector<8>(alpha_ptr + j0 * alpha_stride0 + j2);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float foreground = foreground_v[k];
    const float background = background_v[k];
    const float alpha = alpha_v[k];
    const float d = foreground - background;
    const float diff_foreground = foreground - (1.0f - alpha) * d;
    out_v[k] = fg::abs(alpha) < 0.5f ? background + alpha * d : diff_foreground;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
