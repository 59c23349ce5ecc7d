// fusegen emit softshrink --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// softshrink, forward                                         declared in ops/activations.py
//   diff_input = input - sign(input) * lambd
//   out = where(abs(input) <= lambd, 0, diff_input)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void softshrink_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                             bf16* __restrict__ out_ptr,          // [D0, D1]
                             float lambd, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float diff_input = input - fg::sign(input) * lambd;
    out_v[k] = fg::abs(input) <= lambd ? 0.0f : diff_input;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
