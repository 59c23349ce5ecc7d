// fusegen emit clamp --which backward --dtype bfloat16 --shape input=512,3072 --arg min=-1.0 --arg max=1.0
#include "fusegen.cuh"

// clamp, backward                                             declared in ops/pointwise.py
//   d_input = where(input >= min and input <= max, d_out, 0)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void clamp_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                         const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                         bf16* __restrict__ d_input_ptr,      // [D0, D1]
                         float min_, float max_, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = input >= min_ && input <= max_ ? d_out : 0.0f;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
