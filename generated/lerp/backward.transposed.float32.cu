// Operands transposed: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   d_weight = d_out * d
// elementwise: 4 elements a thread; end, d_end gathered element by element
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                       const float* __restrict__ end_ptr,     // [D0, D1]
                       const float* __restrict__ weight_ptr,  // [D0, D1]
                       const float* __restrict__ d_out_ptr,   // [D0, D1]
                       float* __restrict__ d_input_ptr,       // [D0, D1]
                       float* __restrict__ d_end_ptr,         // [D0, D1]
                       float* __restrict__ d_weight_ptr,      // [D0, D1]
                       int n, fg::Divisor n1, int end_stride1, int d_end_stride1) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto weight_v = fg::load_vector<4>(weight_ptr + at);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> d_weight_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float end_ = fg::load(end_ptr + j0 + j1 * end_stride1 + k * end_stride1);
    const float weight = weight_v[k];
    const float d_out = d_out_v[k];
    const float d = end_ - input;
    d_input_v[k] = d_out * (1.0f - weight);
    fg::store(d_end_ptr + j0 + j1 * d_end_stride1 + k * d_end_stride1, d_out * weight);
    d_weight_v[k] = d_out * d;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(d_weight_ptr + at, d_weight_v);
}
