// fusegen emit where --which forward --dtype float32 --dtype condition=bool --shape condition=512,3072
//     --shape input=512,3072 --shape other=512,3072
#include "fusegen.cuh"

// where, forward                                              declared in ops/pointwise.py
//   out = where(condition, input, other)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void where_forward_f32(const bool* __restrict__ condition_ptr,  // [D0, D1]
                       const float* __restrict__ input_ptr,     // [D0, D1]
                       const float* __restrict__ other_ptr,     // [D0, D1]
                       float* __restrict__ out_ptr,             // [D0, D1]
                       int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto condition_v = fg::load_vector<8>(condition_ptr + at);
  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto other_v = fg::load_vector<8>(other_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const bool condition = condition_v[k];
    const float input = input_v[k];
    const float other = other_v[k];
    out_v[k] = condition ? input : other;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
