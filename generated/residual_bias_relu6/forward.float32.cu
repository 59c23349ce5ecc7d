// fusegen emit residual_bias_relu6 --which forward --dtype float32 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_relu6, forward                                declared in ops/bias.py
//   total = input + bias
//   x = total + residual
//   out = where(x <= 0, 0, where(x >= 6, 6, x))
// elementwise: 4 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void residual_bias_relu6_forward_f32(const float* __restrict__ input_ptr,     // [D0, D1]
                                     const float* __restrict__ bias_ptr,      // [D1]
                                     const float* __restrict__ residual_ptr,  // [D0, D1]
                                     float* __restrict__ out_ptr,             // [D0, D1]
                                     int n, fg::Divisor n1) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
  const auto residual_v = fg::load_vector<4>(residual_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float bias = bias_v[k];
    const float residual = residual_v[k];
    const float total = input + bias;
    const float x = total + residual;
    out_v[k] = x <= 0.0f ? 0.0f : (x >= 6.0f ? 6.0f : x);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
