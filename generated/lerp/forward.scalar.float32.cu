// Operands scalar: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(float32(weight)) < 0.5
//   d = end - input
//   diff_end = end - float32(1 - weight) * d
//   out = where(below, input + float32(weight) * d, diff_end)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                      const float* __restrict__ end_ptr,    // [D0, D1]
                      float* __restrict__ out_ptr,          // [D0, D1]
                      double weight, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto end_v = fg::load_vector<4>(end_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float end_ = end_v[k];
    const bool below = fg::abs(float(weight)) < 0.5f;
    const float d = end_ - input;
    const float diff_end = end_ - float(1.0 - weight) * d;
    out_v[k] = below ? input + float(weight) * d : diff_end;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
