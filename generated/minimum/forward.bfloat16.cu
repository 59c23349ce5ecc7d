// fusegen emit minimum --which forward --dtype bfloat16 --shape input=512,3072 --shape other=512,3072
#include "fusegen.cuh"

// minimum, forward                                            declared in ops/pointwise.py
//   out = minimum(input, other)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void minimum_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                          const bf16* __restrict__ other_ptr,  // [D0, D1]
                          bf16* __restrict__ out_ptr,          // [D0, D1]
                          int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto other_v = fg::load_vector<8>(other_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float other = other_v[k];
    out_v[k] = fg::minimum(input, other);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
