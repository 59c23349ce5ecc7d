// fusegen emit minimum --which forward --dtype float32 --shape input=512,3072 --shape other=512,3072
#include "fusegen.cuh"

// minimum, forward                                            declared in ops/pointwise.py
//   out = minimum(input, other)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void minimum_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                         const float* __restrict__ other_ptr,  // [D0, D1]
                         float* __restrict__ out_ptr,          // [D0, D1]
                         int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto other_v = fg::load_vector<4>(other_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float other = other_v[k];
    out_v[k] = fg::minimum(input, other);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
