// fusegen emit lerp --which backward --dtype bfloat16 --shape input=512,3072 --shape end=512,3072
//     --shape weight=512,3072
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   d_weight = d_out * d
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                        const bf16* __restrict__ end_ptr,     // [D0, D1]
                        const bf16* __restrict__ weight_ptr,  // [D0, D1]
                        const bf16* __restrict__ d_out_ptr,   // [D0, D1]
                        bf16* __restrict__ d_input_ptr,       // [D0, D1]
                        bf16* __restrict__ d_end_ptr,         // [D0, D1]
                        bf16* __restrict__ d_weight_ptr,      // [D0, D1]
                        int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto end_v = fg::load_vector<8>(end_ptr + at);
  const auto weight_v = fg::load_vector<8>(weight_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_end_v;
  fg::Vec<float, 8> d_weight_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float end_ = end_v[k];
    const float weight = weight_v[k];
    const float d_out = d_out_v[k];
    const float d = end_ - input;
    d_input_v[k] = d_out * (1.0f - weight);
    d_end_v[k] = d_out * weight;
    d_weight_v[k] = d_out * d;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_end_ptr + at, d_end_v);
  fg::store_vector<8>(d_weight_ptr + at, d_weight_v);
}
