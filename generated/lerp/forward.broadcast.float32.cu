// Operands broadcast: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// elementwise: 4 elements a thread; input, weight broadcast
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_f32(const float* __restrict__ input_ptr,   // [D0, 1, 1, 1]
                      const float* __restrict__ end_ptr,     // [D0, D1, D2, D3]
                      const float* __restrict__ weight_ptr,  // [D1, 1, D3]
                      float* __restrict__ out_ptr,           // [D0, D1, D2, D3]
                      int n, fg::Divisor n1, fg::Divisor n2, fg::Divisor n3, int weight_stride1) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j3 = fg::take(rest, n3);
  fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const float input = fg::load(input_ptr + j0);
  const auto end_v = fg::load_vector<4>(end_ptr + at);
  const auto weight_v = fg::load_vector<4>(weight_ptr + j1 * weight_stride1 + j3);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float end_ = end_v[k];
    const float weight = weight_v[k];
    const bool below = fg::abs(weight) < 0.5f;
    const float d = end_ - input;
    out_v[k] = below ? input + weight * d : end_ - (1.0f - weight) * d;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
