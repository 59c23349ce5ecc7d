// fusegen emit crelu --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// crelu, forward                                              declared in ops/activations.py
//   out_0 = where(input <= 0, 0, input)
//   out_1 = where(input >= 0, 0, -input)
// elementwise: 4 elements a thread; out_0, out_1 in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void crelu_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                       float* __restrict__ out_0_ptr,        // [D0, D1]
                       float* __restrict__ out_1_ptr,        // [D0, D1]
                       int n, fg::Divisor n1, int out_0_stride0, int out_1_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  fg::Vec<float, 4> out_0_v;
  fg::Vec<float, 4> out_1_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    out_0_v[k] = input <= 0.0f ? 0.0f : input;
    out_1_v[k] = input >= 0.0f ? 0.0f : -input;
  }
  fg::store_vector<4>(out_0_ptr + (j0 * out_0_stride0 + j1), out_0_v);
  fg::store_vector<4>(out_1_ptr + (j0 * out_1_stride0 + j1), out_1_v);
}
