// fusegen emit vector_norm --which backward --dtype float32 --shape x=512,3072
#include "fusegen.cuh"

// vector_norm, backward                                       declared in ops/distances.py
//   same_total = total == 0
//   ratio = where(same_total, 0, 0.5) / sqrt(where(same_total, 1, total))
//   d_x = d_out * where(same_total, 1, ratio) * (2 * x)
// elementwise: 4 elements a thread; d_out, total broadcast
extern "C" __global__ __launch_bounds__(256)
void vector_norm_backward_f32(const float* __restrict__ x_ptr,      // [D0, D1]
                              const float* __restrict__ d_out_ptr,  // [D0]
                              const float* __restrict__ total_ptr,  // [D0]
                              float* __restrict__ d_x_ptr,          // [D0, D1]
                              int n, fg::Divisor n1) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto x_v = fg::load_vector<4>(x_ptr + at);
  const float d_out = fg::load(d_out_ptr + j0);
  const float total = fg::load(total_ptr + j0);
  fg::Vec<float, 4> d_x_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float x = x_v[k];
    const bool same_total = total == 0.0f;
    const float ratio = (same_total ? 0.0f : 0.5f) / sqrtf(same_total ? 1.0f : total);
    d_x_v[k] = d_out * (same_total ? 1.0f : ratio) * (2.0f * x);
  }
  fg::store_vector<4>(d_x_ptr + at, d_x_v);
}
