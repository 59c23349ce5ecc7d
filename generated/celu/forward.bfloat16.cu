// fusegen emit celu --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// celu, forward                                               declared in ops/activations.py
//   out = where(input <= 0, alpha * expm1(input / alpha), input)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void celu_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                       bf16* __restrict__ out_ptr,          // [D0, D1]
                       float alpha, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    out_v[k] = input <= 0.0f ? alpha * expm1f(input / alpha) : input;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
