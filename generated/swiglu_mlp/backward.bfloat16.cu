// fusegen emit swiglu_mlp --which backward --dtype bfloat16 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

// swiglu_mlp, backward: without a kernel
//   d_down[D1, D6] = hidden(d0 -> d11, d3 -> d6) @ d_out(d0 -> d11) over [D11]
//   d_product_3[D0, D3] = d_out(d1 -> d10) @ down(d1 -> d10, d6 -> d3) over [D10]
//   d_input[D0, D2] = prod_d_product_3(d3 -> d12) @ up(d3 -> d12, d5 -> d2) over [D12]
//   d_up[D3, D5] = input(d0 -> d13, d2 -> d5) @ prod_d_product_3(d0 -> d13) over [D13]
//   d_input[D0, D2] += prod_d_product_3_2(d3 -> d14) @ gate(d3 -> d14, d4 -> d2) over [D14]
//   d_gate[D3, D4] = input(d0 -> d15, d2 -> d4) @ prod_d_product_3_2(d0 -> d15) over [D15]

// swiglu_mlp, backward between 1                              declared in ops/mlps.py
//   sigmoid_gate_2 = sigmoid(product)
//   prod_gate_2 = product * sigmoid_gate_2
//   sum = (1 - sigmoid_gate_2) * product * sigmoid_gate_2 + sigmoid_gate_2
//   prod_d_product_3 = d_product_3 * prod_gate_2
//   prod_d_product_3_2 = d_product_3 * (sum * product_2)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void swiglu_mlp_backward_between_1_bf16(const bf16* __restrict__ product_ptr,       // [D0, D3]
                                        const bf16* __restrict__ product_2_ptr,     // [D0, D3]
                                        const bf16* d_product_3_ptr,                // [D0, D3]
                                        bf16* __restrict__ prod_d_product_3_ptr,    // [D0, D3]
                                        bf16* __restrict__ prod_d_product_3_2_ptr,  // [D0, D3]
                                        int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto product_v = fg::load_vector<8>(product_ptr + at);
  const auto product_2_v = fg::load_vector<8>(product_2_ptr + at);
  const auto d_product_3_v = fg::load_vector<8>(d_product_3_ptr + at);
  fg::Vec<float, 8> prod_d_product_3_v;
  fg::Vec<float, 8> prod_d_product_3_2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float product = product_v[k];
    const float product_2 = product_2_v[k];
    const float d_product_3 = d_product_3_v[k];
    const float sigmoid_gate_2 = fg::fast_sigmoid(product);
    const float prod_gate_2 = product * sigmoid_gate_2;
    const float sum = (1.0f - sigmoid_gate_2) * product * sigmoid_gate_2 + sigmoid_gate_2;
    prod_d_product_3_v[k] = d_product_3 * prod_gate_2;
    prod_d_product_3_2_v[k] = d_product_3 * (sum * product_2);
  }
  fg::store_vector<8>(prod_d_product_3_ptr + at, prod_d_product_3_v);
  fg::store_vector<8>(prod_d_product_3_2_ptr + at, prod_d_product_3_2_v);
}
