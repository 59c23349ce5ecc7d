// fusegen emit glu --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// glu, forward                                                declared in ops/gated.py
//   out = a * sigmoid(b)
// elementwise: 4 elements a thread; a, b in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void glu_forward_f32(const float* __restrict__ a_ptr,  // [D0, D1]
                     const float* __restrict__ b_ptr,  // [D0, D1]
                     float* __restrict__ out_ptr,      // [D0, D1]
                     int n, fg::Divisor n1, int a_stride0, int b_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto a_v = fg::load_vector<4>(a_ptr + j0 * a_stride0 + j1);
  const auto b_v = fg::load_vector<4>(b_ptr + j0 * b_stride0 + j1);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float a = a_v[k];
    const float b = b_v[k];
    out_v[k] = a * fg::sigmoid(b);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
