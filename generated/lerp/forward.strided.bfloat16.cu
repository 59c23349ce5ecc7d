// Operands strided: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// elementwise: 8 elements a thread; input, weight gathered element by element
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                       const bf16* __restrict__ end_ptr,     // [D0, D1]
                       const bf16* __restrict__ weight_ptr,  // [D0, D1]
                       bf16* __restrict__ out_ptr,           // [D0, D1]
                       int n, fg::Divisor n1, int input_stride0, int input_stride1, int weight_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto end_v = fg::load_vector<8>(end_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = fg::load(input_ptr + j0 * input_stride0 + j1 * input_stride1 + k * input_stride1);
    const float end_ = end_v[k];
    const float weight = fg::load(weight_ptr + j0 * weight_stride0 + j1 + k);
    const bool below = fg::abs(weight) < 0.5f;
    const float d = end_ - input;
    out_v[k] = below ? input + weight * d : end_ - (1.0f - weight) * d;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
