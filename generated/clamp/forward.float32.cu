// fusegen emit clamp --which forward --dtype float32 --shape input=512,3072 --arg min=-1.0 --arg max=1.0
#include "fusegen.cuh"

// clamp, forward                                              declared in ops/pointwise.py
//   out = clamp(input, min, max)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void clamp_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                       float* __restrict__ out_ptr,          // [D0, D1]
                       float min_, float max_, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    out_v[k] = fg::clamp(input, min_, max_);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
