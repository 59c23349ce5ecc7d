// fusegen emit glu --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// glu, backward                                               declared in ops/gated.py
//   sigmoid_b = sigmoid(b)
//   d_a = d_out * sigmoid_b
//   d_b = d_out * (a * (1 - sigmoid_b) * sigmoid_b)
// elementwise: 8 elements a thread; a, b, d_a, d_b in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void glu_backward_bf16(const bf16* __restrict__ a_ptr,      // [D0, D1]
                       const bf16* __restrict__ b_ptr,      // [D0, D1]
                       const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                       bf16* __restrict__ d_a_ptr,          // [D0, D1]
                       bf16* __restrict__ d_b_ptr,          // [D0, D1]
                       int n, fg::Divisor n1, int a_stride0, int b_stride0, int d_a_stride0, int d_b_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto a_v = fg::load_vector<8>(a_ptr + j0 * a_stride0 + j1);
  const auto b_v = fg::load_vector<8>(b_ptr + j0 * b_stride0 + j1);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_a_v;
  fg::Vec<float, 8> d_b_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float a = a_v[k];
    const float b = b_v[k];
    const float d_out = d_out_v[k];
    const float sigmoid_b = fg::fast_sigmoid(b);
    d_a_v[k] = d_out * sigmoid_b;
    d_b_v[k] = d_out * (a * (1.0f - sigmoid_b) * sigmoid_b);
  }
  fg::store_vector<8>(d_a_ptr + (j0 * d_a_stride0 + j1), d_a_v);
  fg::store_vector<8>(d_b_ptr + (j0 * d_b_stride0 + j1), d_b_v);
}
