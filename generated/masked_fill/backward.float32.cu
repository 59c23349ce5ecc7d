// fusegen emit masked_fill --which backward --dtype float32 --dtype mask=bool --shape input=512,3072
//     --shape mask=512,3072 --arg value=0.0
#include "fusegen.cuh"

// masked_fill, backward                                       declared in ops/pointwise.py
//   d_input = where(mask, 0, d_out)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void masked_fill_backward_f32(const bool* __restrict__ mask_ptr,    // [D0, D1]
                              const float* __restrict__ d_out_ptr,  // [D0, D1]
                              float* __restrict__ d_input_ptr,      // [D0, D1]
                              int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto mask_v = fg::load_vector<8>(mask_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const bool mask = mask_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = mask ? 0.0f : d_out;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
