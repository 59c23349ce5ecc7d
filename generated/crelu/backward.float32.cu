// fusegen emit crelu --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// crelu, backward                                             declared in ops/activations.py
//   d_input = where(input <= 0, 0, d_out_0) + where(input >= 0, 0, -d_out_1)
// elementwise: 4 elements a thread; d_out_0, d_out_1 in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void crelu_backward_f32(const float* __restrict__ input_ptr,    // [D0, D1]
                        const float* __restrict__ d_out_0_ptr,  // [D0, D1]
                        const float* __restrict__ d_out_1_ptr,  // [D0, D1]
                        float* __restrict__ d_input_ptr,        // [D0, D1]
                        int n, fg::Divisor n1, int d_out_0_stride0, int d_out_1_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto d_out_0_v = fg::load_vector<4>(d_out_0_ptr + j0 * d_out_0_stride0 + j1);
  const auto d_out_1_v = fg::load_vector<4>(d_out_1_ptr + j0 * d_out_1_stride0 + j1);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float d_out_0 = d_out_0_v[k];
    const float d_out_1 = d_out_1_v[k];
    d_input_v[k] = (input <= 0.0f ? 0.0f : d_out_0) + (input >= 0.0f ? 0.0f : -d_out_1);
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
