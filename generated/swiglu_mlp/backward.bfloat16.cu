// fusegen emit swiglu_mlp --which backward --dtype bfloat16 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

// swiglu_mlp, backward between 1                              declared in ops/mlps.py
//   sigmoid_gate_2 = sigmoid(product)
//   prod_gate_2 = product * sigmoid_gate_2
//   prod = (1 - sigmoid_gate_2) * product * product_2 * sigmoid_gate_2
//   prod_d_product_3 = d_product_3 * prod_gate_2
//   prod_d_product_3_2 = d_product_3 * (prod + product_2 * sigmoid_gate_2)
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
    const float prod = (1.0f - sigmoid_gate_2) * product * product_2 * sigmoid_gate_2;
    prod_d_product_3_v[k] = d_product_3 * prod_gate_2;
    prod_d_product_3_2_v[k] = d_product_3 * (prod + product_2 * sigmoid_gate_2);
  }
  fg::store_vector<8>(prod_d_product_3_ptr + at, prod_d_product_3_v);
  fg::store_vector<8>(prod_d_product_3_2_ptr + at, prod_d_product_3_2_v);
}
