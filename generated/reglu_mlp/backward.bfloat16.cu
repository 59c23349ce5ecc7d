// fusegen emit reglu_mlp --which backward --dtype bfloat16 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

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
