// fusegen emit alpha_over --which forward --dtype bfloat16 --shape foreground=8,3,256,256
//     --shape foreground_alpha=8,1,256,256 --shape background=8,3,256,256 --shape background_alpha=8,1,256,256
#include "fusegen.cuh"

// alpha_over, forward                                         declared in ops/blends.py
//   behind = background_alpha * (1 - foreground_alpha)
//   alpha = foreground_alpha + behind
//   ratio_alpha = (foreground_alpha * foreground + behind * background) / alpha
//   colour = where(alpha == 0, 0, ratio_alpha)
// elementwise: 8 elements a thread; foreground_alpha, background_alpha broadcast
extern "C" __global__ __launch_bounds__(256)
void alpha_over_forward_bf16_colour(const bf16* __restrict__ foreground_ptr,        // [D0, D1, D2, D3]
                                    const bf16* __restrict__ foreground_alpha_ptr,  // [D0, 1, D2, D3]
                                    const bf16* __restrict__ background_ptr,        // [D0, D1, D2, D3]
                                    const bf16* __restrict__ background_alpha_ptr,  // [D0, 1, D2, D3]
                                    bf16* __restrict__ colour_ptr,                  // [D0, D1, D2, D3]
                                    int n, fg::Divisor n1, fg::Divisor n2, int foreground_alpha_stride0,
                                    int background_alpha_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j2 = fg::take(rest, n2);
  fg::take(rest, n1);
  const int j0 = rest;

  const auto foreground_v = fg::load_vector<8>(foreground_ptr + at);
  const auto foreground_alpha_v = fg::load_vector<8>(foreground_alpha_ptr + j0 * foreground_alpha_stride0 + j2);
  const auto background_v = fg::load_vector<8>(background_ptr + at);
  const auto background_alpha_v = fg::load_vector<8>(background_alpha_ptr + j0 * background_alpha_stride0 + j2);
  fg::Vec<float, 8> colour_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float foreground = foreground_v[k];
    const float foreground_alpha = foreground_alpha_v[k];
    const float background = background_v[k];
    const float background_alpha = background_alpha_v[k];
    const float behind = background_alpha * (1.0f - foreground_alpha);
    const float alpha = foreground_alpha + behind;
    const float ratio_alpha = fg::fast_divide(foreground_alpha * foreground + behind * background, alpha);
    colour_v[k] = alpha == 0.0f ? 0.0f : ratio_alpha;
  }
  fg::store_vector<8>(colour_ptr + at, colour_v);
}

// alpha_over, forward                                         declared in ops/blends.py
//   behind = background_alpha * (1 - foreground_alpha)
//   alpha = foreground_alpha + behind
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void alpha_over_forward_bf16_alpha(const bf16* __restrict__ foreground_alpha_ptr,  // [D0, 1, D2, D3]
                                   const bf16* __restrict__ background_alpha_ptr,  // [D0, 1, D2, D3]
                                   bf16* __restrict__ alpha_ptr,                   // [D0, 1, D2, D3]
                                   int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto foreground_alpha_v = fg::load_vector<8>(foreground_alpha_ptr + at);
  const auto background_alpha_v = fg::load_vector<8>(background_alpha_ptr + at);
  fg::Vec<float, 8> alpha_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float foreground_alpha = foreground_alpha_v[k];
    const float background_alpha = background_alpha_v[k];
    const float behind = background_alpha * (1.0f - foreground_alpha);
    alpha_v[k] = foreground_alpha + behind;
  }
  fg::store_vector<8>(alpha_ptr + at, alpha_v);
}
