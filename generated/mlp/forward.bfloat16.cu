// fusegen emit mlp --which forward --dtype bfloat16 --shape input=512,768 --shape up=3072,768 --shape up_bias=3072
//     --shape down=768,3072 --shape down_bias=768
#include "fusegen.cuh"

// mlp, forward: without a kernel
//   x[D0, D3] = input(d2 -> d6) @ up(d4 -> d6) over [D6] + up_bias
//   out[D0, D1] = hidden(d3 -> d7) @ down(d5 -> d7) over [D7] + down_bias

// mlp, forward between 1                                      declared in ops/mlps.py
//   hidden = 0.5 * x * erfc(-0.7071067811865476 * x)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void mlp_forward_between_1_bf16(const bf16* x_ptr,              // [D0, D3]
                                bf16* __restrict__ hidden_ptr,  // [D0, D3]
                                int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto x_v = fg::load_vector<8>(x_ptr + at);
  fg::Vec<float, 8> hidden_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float x = x_v[k];
    hidden_v[k] = 0.5f * x * fg::fast_erfc(-0.7071067811865476f * x);
  }
  fg::store_vector<8>(hidden_ptr + at, hidden_v);
}
