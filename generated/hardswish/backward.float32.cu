// fusegen emit hardswish --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// hardswish, backward                                         declared in ops/activations.py
//   prod_d_out = d_out * where(input < 3, 0.5 + 0.3333333333333333 * input, 1)
//   d_input = where(input <= -3, 0, prod_d_out)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void hardswish_backward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                            const float* __restrict__ d_out_ptr,  // [D0, D1]
                            float* __restrict__ d_input_ptr,      // [D0, D1]
                            int n) {
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
    const float prod_d_out = d_out * (input < 3.0f ? 0.5f + 0.3333333333333333f * input : 1.0f);
    d_input_v[k] = input <= -3.0f ? 0.0f : prod_d_out;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
