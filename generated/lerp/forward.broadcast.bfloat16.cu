// Operands broadcast: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// elementwise: 8 elements a thread; input, weight gathered element by element
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, 1, 1, 1]
                       const bf16* __restrict__ end_ptr,     // [D0, D1, D2, D3]
                       const bf16* __restrict__ weight_ptr,  // [D1, 1, D3]
                       bf16* __restrict__ out_ptr,           // [D0, D1, D2, D3]
                       int n, fg::Divisor n1, fg::Divisor n2, fg::Divisor n3, int weight_stride1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  int j3 = fg::take(rest, n3);
  int j2 = fg::take(rest, n2);
  int j1 = fg::take(rest, n1);
  int j0 = rest;

  const auto end_v = fg::load_vector<8>(end_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = fg::load(input_ptr + j0);
    const float end_ = end_v[k];
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j3);
    const bool below = fg::abs(weight) < 0.5f;
    const float d = end_ - input;
    out_v[k] = below ? input + weight * d : end_ - (1.0f - weight) * d;
    j0 += fg::advance(j1, n1, fg::advance(j2, n2, fg::advance(j3, n3, true)));
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
