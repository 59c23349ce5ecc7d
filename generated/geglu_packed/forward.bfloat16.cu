// fusegen emit geglu_packed --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// geglu_packed, forward                                       declared in ops/gated.py
//   out = 0.5 * gate * erfc(-0.7071067811865476 * gate) * value
// elementwise: 8 elements a thread; gate, value in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void geglu_packed_forward_bf16(const bf16* __restrict__ gate_ptr,   // [D0, D1]
                               const bf16* __restrict__ value_ptr,  // [D0, D1]
                               bf16* __restrict__ out_ptr,          // [D0, D1]
                               int n, fg::Divisor n1, int gate_stride0, int value_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto gate_v = fg::load_vector<8>(gate_ptr + j0 * gate_stride0 + j1);
  const auto value_v = fg::load_vector<8>(value_ptr + j0 * value_stride0 + j1);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float gate = gate_v[k];
    const float value = value_v[k];
    out_v[k] = 0.5f * gate * fg::fast_erfc(-0.7071067811865476f * gate) * value;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
