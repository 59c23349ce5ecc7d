// fusegen emit linear_silu --which forward --dtype bfloat16 --shape input=512,768 --shape weight=3072,768
//     --shape bias=3072
#include "fusegen.cuh"

// linear_silu, forward: without a kernel
//   x[D0, D1] = input(d2 -> d4) @ weight(d3 -> d4) over [D4] + bias

// linear_silu, forward epilogue                               declared in ops/linear.py
//   out = x * sigmoid(x)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void linear_silu_forward_epilogue_bf16(const bf16* x_ptr,           // [D0, D1]
                                       bf16* __restrict__ out_ptr,  // [D0, D1]
                                       int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto x_v = fg::load_vector<8>(x_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float x = x_v[k];
    out_v[k] = x * fg::fast_sigmoid(x);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
