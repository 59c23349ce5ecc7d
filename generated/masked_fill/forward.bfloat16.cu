// fusegen emit masked_fill --which forward --dtype bfloat16 --dtype mask=bool --shape input=512,3072
//     --shape mask=512,3072 --arg value=0.0
#include "fusegen.cuh"

// masked_fill, forward                                        declared in ops/pointwise.py
//   out = where(mask, value, input)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void masked_fill_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                              const bool* __restrict__ mask_ptr,   // [D0, D1]
                              bf16* __restrict__ out_ptr,          // [D0, D1]
                              float value, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto mask_v = fg::load_vector<8>(mask_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const bool mask = mask_v[k];
    out_v[k] = mask ? value : input;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
