// fusegen emit geglu --which forward --dtype bfloat16 --shape gate=512,3072 --shape value=512,3072
#include "fusegen.cuh"

// geglu, forward                                              declared in ops/gated.py
//   out = 0.5 * gate * erfc(-0.7071067811865476 * gate) * value
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void geglu_forward_bf16(const bf16* __restrict__ gate_ptr,   // [D0, D1]
                        const bf16* __restrict__ value_ptr,  // [D0, D1]
                        bf16* __restrict__ out_ptr,          // [D0, D1]
                        int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto gate_v = fg::load_vector<8>(gate_ptr + at);
  const auto value_v = fg::load_vector<8>(value_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float gate = gate_v[k];
    const float value = value_v[k];
    out_v[k] = 0.5f * gate * fg::fast_erfc(-0.7071067811865476f * gate) * value;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
