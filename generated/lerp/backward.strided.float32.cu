// Operands strided: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   d_weight = d_out * d
// elementwise: 4 elements a thread; weight in rows that lie apart; input gathered element by element
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                       const float* __restrict__ end_ptr,     // [D0, D1]
                       const float* __restrict__ weight_ptr,  // [D0, D1]
                       const float* __restrict__ d_out_ptr,   // [D0, D1]
                       float* __restrict__ d_input_ptr,       // [D0, D1]
                       float* __restrict__ d_end_ptr,         // [D0, D1]
                       float* __restrict__ d_weight_ptr,      // [D0, D1]
                       int n, fg::Divisor n1, int input_stride0, int input_stride1, int weight_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto end_v = fg::load_vector<4>(end_ptr + at);
  const auto weight_v = fg::load_vector<4>(weight_ptr + j0 * weight_stride0 + j1);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> d_end_v;
  fg::Vec<float, 4> d_weight_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = fg::load(input_ptr + j0 * input_stride0 + j1 * input_stride1 + k * input_stride1);
    const float end_ = end_v[k];
    const float weight = weight_v[k];
    const float d_out = d_out_v[k];
    const float d = end_ - input;
    d_input_v[k] = d_out * (1.0f - weight);
    d_end_v[k] = d_out * weight;
    d_weight_v[k] = d_out * d;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(d_end_ptr + at, d_end_v);
  fg::store_vector<4>(d_weight_ptr + at, d_weight_v);
}
