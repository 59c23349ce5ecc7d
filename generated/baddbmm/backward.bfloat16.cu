// fusegen emit baddbmm --which backward --dtype bfloat16 --shape input=8,56,48 --shape batch1=8,56,64
//     --shape batch2=8,64,48
#include "fusegen.cuh"

// baddbmm, backward: without a kernel
//   d_batch1[D0, D1, D3] = prod_d_out_alpha(d2 -> d6) @ batch2(d2 -> d6, d4 -> d3) over [D6]
//   d_batch2[D0, D4, D2] = batch1(d1 -> d7, d3 -> d4) @ prod_d_out_alpha(d1 -> d7) over [D7]

// baddbmm, backward prologue                                  declared in ops/products.py
//   d_input = where(beta == 0, 0, d_out * beta)
//   prod_d_out_alpha = d_out * alpha
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void baddbmm_backward_prologue_bf16(const bf16* __restrict__ d_out_ptr,       // [D0, D1, D2]
                                    bf16* __restrict__ d_input_ptr,           // [D0, D1, D2]
                                    bf16* __restrict__ prod_d_out_alpha_ptr,  // [D0, D1, D2]
                                    float beta, float alpha, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> prod_d_out_alpha_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float d_out = d_out_v[k];
    d_input_v[k] = beta == 0.0f ? 0.0f : d_out * beta;
    prod_d_out_alpha_v[k] = d_out * alpha;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(prod_d_out_alpha_ptr + at, prod_d_out_alpha_v);
}
