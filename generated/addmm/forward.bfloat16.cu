// fusegen emit addmm --which forward --dtype bfloat16 --shape input=512,3072 --shape mat1=512,768
//     --shape mat2=768,3072
#include "fusegen.cuh"

// addmm, forward: without a kernel
//   product[D0, D2] = mat1(d3 -> d4) @ mat2(d1 -> d4) over [D4]

// addmm, forward epilogue                                     declared in ops/products.py
//   out = input + product
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void addmm_forward_epilogue_bf16(const bf16* __restrict__ input_ptr,  // [D0, D2]
                                 const bf16* product_ptr,             // [D0, D2]
                                 bf16* __restrict__ out_ptr,          // [D0, D2]
                                 int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto product_v = fg::load_vector<8>(product_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float product = product_v[k];
    out_v[k] = input + product;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
