// fusegen emit swiglu_packed --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// swiglu_packed, backward                                     declared in ops/gated.py
//   sigmoid_gate = sigmoid(gate)
//   prod_value = value * (gate * (1 - sigmoid_gate) * sigmoid_gate + sigmoid_gate)
//   d_gate = d_out * prod_value
//   d_value = d_out * (gate * sigmoid_gate)
// elementwise: 8 elements a thread; gate, value, d_gate, d_value in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void swiglu_packed_backward_bf16(const bf16* __restrict__ gate_ptr,   // [D0, D1]
                                 const bf16* __restrict__ value_ptr,  // [D0, D1]
                                 const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                                 bf16* __restrict__ d_gate_ptr,       // [D0, D1]
                                 bf16* __restrict__ d_value_ptr,      // [D0, D1]
                                 int n, fg::Divisor n1, int gate_stride0, int value_stride0, int d_gate_stride0,
                                 int d_value_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto gate_v = fg::load_vector<8>(gate_ptr + j0 * gate_stride0 + j1);
  const auto value_v = fg::load_vector<8>(value_ptr + j0 * value_stride0 + j1);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_gate_v;
  fg::Vec<float, 8> d_value_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float gate = gate_v[k];
    const float value = value_v[k];
    const float d_out = d_out_v[k];
    const float sigmoid_gate = fg::fast_sigmoid(gate);
    const float prod_value = value * (gate * (1.0f - sigmoid_gate) * sigmoid_gate + sigmoid_gate);
    d_gate_v[k] = d_out * prod_value;
    d_value_v[k] = d_out * (gate * sigmoid_gate);
  }
  fg::store_vector<8>(d_gate_ptr + (j0 * d_gate_stride0 + j1), d_gate_v);
  fg::store_vector<8>(d_value_ptr + (j0 * d_value_stride0 + j1), d_value_v);
}
