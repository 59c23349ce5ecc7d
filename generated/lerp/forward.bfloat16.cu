// fusegen emit lerp --which forward --dtype bfloat16 --shape input=512,3072 --shape end=512,3072
//     --shape weight=512,3072
#include "fusegen.cuh"

// lerp, forward                                               declared in ops/blends.py
//   below = abs(weight) < 0.5
//   d = end - input
//   out = where(below, input + weight * d, end - (1 - weight) * d)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void lerp_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                       const bf16* __restrict__ end_ptr,     // [D0, D1]
                       const bf16* __restrict__ weight_ptr,  // [D0, D1]
                       bf16* __restrict__ out_ptr,           // [D0, D1]
                       int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto end_v = fg::load_vector<8>(end_ptr + at);
  const auto weight_v = fg::load_vector<8>(weight_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float end_ = end_v[k];
    const float weight = weight_v[k];
    const bool below = fg::abs(weight) < 0.5f;
    const float d = end_ - input;
    out_v[k] = below ? input + weight * d : end_ - (1.0f - weight) * d;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
