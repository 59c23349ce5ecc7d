// fusegen emit residual_bias_gelu --which forward --dtype bfloat16 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_gelu, forward                                 declared in ops/bias.py
//   total = input + bias
//   x = total + residual
//   out = 0.5 * x * erfc(-0.7071067811865476 * x)
// elementwise: 8 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void residual_bias_gelu_forward_bf16(const bf16* __restrict__ input_ptr,     // [D0, D1]
                                     const bf16* __restrict__ bias_ptr,      // [D1]
                                     const bf16* __restrict__ residual_ptr,  // [D0, D1]
                                     bf16* __restrict__ out_ptr,             // [D0, D1]
                                     int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
  const auto residual_v = fg::load_vector<8>(residual_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float bias = bias_v[k];
    const float residual = residual_v[k];
    const float total = input + bias;
    const float x = total + residual;
    out_v[k] = 0.5f * x * fg::fast_erfc(-0.7071067811865476f * x);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
