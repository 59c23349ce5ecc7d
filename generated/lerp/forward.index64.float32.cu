// Operands index64: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// elementwise: 4 elements a thread; weight broadcast
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                      const float* __restrict__ end_ptr,     // [D0, D1]
                      const float* __restrict__ weight_ptr,  // [D1]
                      float* __restrict__ out_ptr,           // [D0, D1]
                      int64_t n, fg::Divisor64 n1) {
  // Locate: each thread owns 4 consecutive elements.
  const int64_t at = 4 * (int64_t(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int64_t rest = at;
  const int64_t j1 = fg::take(rest, n1);

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto end_v = fg::load_vector<4>(end_ptr + at);
  const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float end_ = end_v[k];
    const float weight = weight_v[k];
    const bool below = fg::abs(weight) < 0.5f;
    const float d = end_ - input;
    out_v[k] = below ? input + weight * d : end_ - (1.0f - weight) * d;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
