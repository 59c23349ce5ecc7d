// fusegen emit hardsigmoid --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// hardsigmoid, forward                                        declared in ops/activations.py
//   inside_ = (input > -3) & (input < 3)
//   sum_input = input + 3
//   barrier_value = barrier(clamp(sum_input, 0, 6))
//   out = where(inside_, sum_input, barrier_value) / 6
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void hardsigmoid_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                             float* __restrict__ out_ptr,          // [D0, D1]
                             int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const bool inside_ = (input > -3.0f) & (input < 3.0f);
    const float sum_input = input + 3.0f;
    const float barrier_value = fg::clamp(sum_input, 0.0f, 6.0f);
    out_v[k] = (inside_ ? sum_input : barrier_value) / 6.0f;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
