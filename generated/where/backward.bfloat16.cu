// fusegen emit where --which backward --dtype bfloat16 --dtype condition=bool --shape condition=512,3072
//     --shape input=512,3072 --shape other=512,3072
#include "fusegen.cuh"

// where, backward                                             declared in ops/pointwise.py
//   d_input = where(condition, d_out, 0)
//   d_other = where(condition, 0, d_out)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void where_backward_bf16(const bool* __restrict__ condition_ptr,  // [D0, D1]
                         const bf16* __restrict__ d_out_ptr,      // [D0, D1]
                         bf16* __restrict__ d_input_ptr,          // [D0, D1]
                         bf16* __restrict__ d_other_ptr,          // [D0, D1]
                         int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto condition_v = fg::load_vector<8>(condition_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_other_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const bool condition = condition_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = condition ? d_out : 0.0f;
    d_other_v[k] = condition ? 0.0f : d_out;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_other_ptr + at, d_other_v);
}
