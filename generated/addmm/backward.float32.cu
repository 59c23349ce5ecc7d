// fusegen emit addmm --which backward --dtype float32 --shape input=512,3072 --shape mat1=512,768
//     --shape mat2=768,3072
#include "fusegen.cuh"

// addmm, backward: without a kernel
//   d_mat1[D0, D2] = prod_d_out_alpha(d1 -> d5) @ mat2(d1 -> d5, d3 -> d2) over [D5]
//   d_mat2[D3, D1] = mat1(d0 -> d6, d2 -> d3) @ prod_d_out_alpha(d0 -> d6) over [D6]

// addmm, backward prologue                                    declared in ops/products.py
//   d_input = where(beta == 0, 0, d_out * beta)
//   prod_d_out_alpha = d_out * alpha
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void addmm_backward_prologue_f32(const float* __restrict__ d_out_ptr,       // [D0, D1]
                                 float* __restrict__ d_input_ptr,           // [D0, D1]
                                 float* __restrict__ prod_d_out_alpha_ptr,  // [D0, D1]
                                 float beta, float alpha, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> prod_d_out_alpha_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float d_out = d_out_v[k];
    d_input_v[k] = beta == 0.0f ? 0.0f : d_out * beta;
    prod_d_out_alpha_v[k] = d_out * alpha;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(prod_d_out_alpha_ptr + at, prod_d_out_alpha_v);
}
