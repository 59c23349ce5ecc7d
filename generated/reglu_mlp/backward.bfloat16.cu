// fusegen emit reglu_mlp --which backward --dtype bfloat16 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

// reglu_mlp, backward: without a kernel
//   d_down[D1, D6] = hidden(d0 -> d11, d3 -> d6) @ d_out(d0 -> d11) over [D11]
//   d_product_3[D0, D3] = d_out(d1 -> d10) @ down(d1 -> d10, d6 -> d3) over [D10]
//   d_input[D0, D2] = chosen(d3 -> d12) @ up(d3 -> d12, d5 -> d2) over [D12]
//   d_up[D3, D5] = input(d0 -> d13, d2 -> d5) @ chosen(d0 -> d13) over [D13]
//   d_input[D0, D2] += chosen_2(d3 -> d14) @ gate(d3 -> d14, d4 -> d2) over [D14]
//   d_gate[D3, D4] = input(d0 -> d15, d2 -> d4) @ chosen_2(d0 -> d15) over [D15]

// reglu_mlp, backward prologue                                declared in ops/mlps.py
//   below_gate_2 = product <= 0
//   hidden = where(below_gate_2, 0, product * product_2)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void reglu_mlp_backward_prologue_bf16(const bf16* __restrict__ product_ptr,    // [D0, D3]
                                      const bf16* __restrict__ product_2_ptr,  // [D0, D3]
                                      bf16* __restrict__ hidden_ptr,           // [D0, D3]
                                      int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto product_v = fg::load_vector<8>(product_ptr + at);
  const auto product_2_v = fg::load_vector<8>(product_2_ptr + at);
  fg::Vec<float, 8> hidden_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float product = product_v[k];
    const float product_2 = product_2_v[k];
    const bool below_gate_2 = product <= 0.0f;
    hidden_v[k] = below_gate_2 ? 0.0f : product * product_2;
  }
  fg::store_vector<8>(hidden_ptr + at, hidden_v);
}

// reglu_mlp, backward between 1                               declared in ops/mlps.py
//   below_gate_2 = product <= 0
//   chosen = where(below_gate_2, 0, d_product_3 * product)
//   chosen_2 = where(below_gate_2, 0, d_product_3 * product_2)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void reglu_mlp_backward_between_1_bf16(const bf16* __restrict__ product_ptr,    // [D0, D3]
                                       const bf16* __restrict__ product_2_ptr,  // [D0, D3]
                                       const bf16* d_product_3_ptr,             // [D0, D3]
                                       bf16* __restrict__ chosen_ptr,           // [D0, D3]
                                       bf16* __restrict__ chosen_2_ptr,         // [D0, D3]
                                       int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto product_v = fg::load_vector<8>(product_ptr + at);
  const auto product_2_v = fg::load_vector<8>(product_2_ptr + at);
  const auto d_product_3_v = fg::load_vector<8>(d_product_3_ptr + at);
  fg::Vec<float, 8> chosen_v;
  fg::Vec<float, 8> chosen_2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float product = product_v[k];
    const float product_2 = product_2_v[k];
    const float d_product_3 = d_product_3_v[k];
    const bool below_gate_2 = product <= 0.0f;
    chosen_v[k] = below_gate_2 ? 0.0f : d_product_3 * product;
    chosen_2_v[k] = below_gate_2 ? 0.0f : d_product_3 * product_2;
  }
  fg::store_vector<8>(chosen_ptr + at, chosen_v);
  fg::store_vector<8>(chosen_2_ptr + at, chosen_2_v);
}
