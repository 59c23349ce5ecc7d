// fusegen emit maximum --which backward --dtype bfloat16 --shape input=512,3072 --shape other=512,3072
#include "fusegen.cuh"

// maximum, backward                                           declared in ops/pointwise.py
//   prod_d_out = d_out * where(input == other, 0.5, 1)
//   d_input = where(input < other, 0, prod_d_out)
//   d_other = where(input > other, 0, prod_d_out)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void maximum_backward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                           const bf16* __restrict__ other_ptr,  // [D0, D1]
                           const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                           bf16* __restrict__ d_input_ptr,      // [D0, D1]
                           bf16* __restrict__ d_other_ptr,      // [D0, D1]
                           int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto other_v = fg::load_vector<8>(other_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_other_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float other = other_v[k];
    const float d_out = d_out_v[k];
    const float prod_d_out = d_out * (input == other ? 0.5f : 1.0f);
    d_input_v[k] = input < other ? 0.0f : prod_d_out;
    d_other_v[k] = input > other ? 0.0f : prod_d_out;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_other_ptr + at, d_other_v);
}
