// Operands scalar: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   below = abs(float32(weight)) < 0.5
//   value = float32(1 - weight)
//   d_input = d_out * where(below, 1 - float32(weight), value)
//   d_end = d_out * where(below, float32(weight), 1 - value)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_f32(const float* __restrict__ d_out_ptr,  // [D0, D1]
                       float* __restrict__ d_input_ptr,      // [D0, D1]
                       float* __restrict__ d_end_ptr,        // [D0, D1]
                       double weight, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> d_end_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float d_out = d_out_v[k];
    const bool below = fg::abs(float(weight)) < 0.5f;
    const float value = float(1.0 - weight);
    d_input_v[k] = d_out * (below ? 1.0f - float(weight) : value);
    d_end_v[k] = d_out * (below ? float(weight) : 1.0f - value);
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(d_end_ptr + at, d_end_v);
}
