// fusegen emit geglu --which backward --dtype bfloat16 --shape gate=512,3072 --shape value=512,3072
#include "fusegen.cuh"

// geglu, backward                                             declared in ops/gated.py
//   prod_gate = -0.7071067811865476 * gate
//   exp_value = exp(-prod_gate^2)
//   erfc_value = erfc(prod_gate)
//   prod_value = value * (0.3989422804014327 * gate * exp_value + 0.5 * erfc_value)
//   d_gate = d_out * prod_value
//   d_value = d_out * (0.5 * gate * erfc_value)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void geglu_backward_bf16(const bf16* __restrict__ gate_ptr,   // [D0, D1]
                         const bf16* __restrict__ value_ptr,  // [D0, D1]
                         const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                         bf16* __restrict__ d_gate_ptr,       // [D0, D1]
                         bf16* __restrict__ d_value_ptr,      // [D0, D1]
                         int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto gate_v = fg::load_vector<8>(gate_ptr + at);
  const auto value_v = fg::load_vector<8>(value_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_gate_v;
  fg::Vec<float, 8> d_value_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float gate = gate_v[k];
    const float value = value_v[k];
    const float d_out = d_out_v[k];
    const float prod_gate = -0.7071067811865476f * gate;
    const float exp_value = fg::fast_exp_below(-(prod_gate * prod_gate));
    const float erfc_value = fg::fast_erfc(prod_gate);
    const float prod_value = value * (0.3989422804014327f * gate * exp_value + 0.5f * erfc_value);
    d_gate_v[k] = d_out * prod_value;
    d_value_v[k] = d_out * (0.5f * gate * erfc_value);
  }
  fg::store_vector<8>(d_gate_ptr + at, d_gate_v);
  fg::store_vector<8>(d_value_ptr + at, d_value_v);
}
