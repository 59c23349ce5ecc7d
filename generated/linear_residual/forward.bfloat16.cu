// fusegen emit linear_residual --which forward --dtype bfloat16 --shape input=512,768 --shape weight=3072,768
//     --shape bias=3072 --shape residual=512,3072
#include "fusegen.cuh"

// linear_residual, forward: without a kernel
//   made[D0, D1] = input(d2 -> d4) @ weight(d3 -> d4) over [D4] + bias

// linear_residual, forward epilogue                           declared in ops/linear.py
//   out = residual + made
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void linear_residual_forward_epilogue_bf16(const bf16* __restrict__ residual_ptr,  // [D0, D1]
                                           const bf16* made_ptr,                   // [D0, D1]
                                           bf16* __restrict__ out_ptr,             // [D0, D1]
                                           int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto residual_v = fg::load_vector<8>(residual_ptr + at);
  const auto made_v = fg::load_vector<8>(made_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float residual = residual_v[k];
    const float made = made_v[k];
    out_v[k] = residual + made;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
