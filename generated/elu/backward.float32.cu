// fusegen emit elu --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// elu, backward                                               declared in ops/activations.py
//   d_input = d_out * where(input <= 0, alpha * exp(input), 1)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void elu_backward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                      const float* __restrict__ d_out_ptr,  // [D0, D1]
                      float* __restrict__ d_input_ptr,      // [D0, D1]
                      float alpha, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = d_out * (input <= 0.0f ? alpha * expf(input) : 1.0f);
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
