// fusegen emit swiglu_mlp --which forward --dtype float32 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

// swiglu_mlp, forward: without a kernel
//   gate_2[D0, D3] = input(d2 -> d7) @ gate(d4 -> d7) over [D7]
//   value[D0, D3] = input(d2 -> d8) @ up(d5 -> d8) over [D8]
//   out[D0, D1] = hidden(d3 -> d9) @ down(d6 -> d9) over [D9]

// swiglu_mlp, forward between 1                               declared in ops/mlps.py
//   hidden = gate_2 * sigmoid(gate_2) * value
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void swiglu_mlp_forward_between_1_f32(const float* gate_2_ptr,         // [D0, D3]
                                      const float* value_ptr,          // [D0, D3]
                                      float* __restrict__ hidden_ptr,  // [D0, D3]
                                      int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto gate_2_v = fg::load_vector<4>(gate_2_ptr + at);
  const auto value_v = fg::load_vector<4>(value_ptr + at);
  fg::Vec<float, 4> hidden_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float gate_2 = gate_2_v[k];
    const float value = value_v[k];
    hidden_v[k] = gate_2 * fg::sigmoid(gate_2) * value;
  }
  fg::store_vector<4>(hidden_ptr + at, hidden_v);
}
