// fusegen emit reglu_mlp --which forward --dtype bfloat16 --shape input=512,768 --shape gate=3072,768
//     --shape up=3072,768 --shape down=768,3072
#include "fusegen.cuh"

// reglu_mlp, forward: without a kernel
//   product[D0, D3] = input(d2 -> d7) @ gate(d4 -> d7) over [D7]
//   product_2[D0, D3] = input(d2 -> d8) @ up(d5 -> d8) over [D8]
//   out[D0, D1] = hidden(d3 -> d9) @ down(d6 -> d9) over [D9]

// reglu_mlp, forward between 1                                declared in ops/mlps.py
//   hidden = where(product <= 0, 0, product) * product_2
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void reglu_mlp_forward_between_1_bf16(const bf16* product_ptr,        // [D0, D3]
                                      const bf16* product_2_ptr,      // [D0, D3]
                                      bf16* __restrict__ hidden_ptr,  // [D0, D3]
                                      int n) {
  fg::wait_for_previous_kernel();
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
    hidden_v[k] = (product <= 0.0f ? 0.0f : product) * product_2;
  }
  fg::store_vector<8>(hidden_ptr + at, hidden_v);
}
