// fusegen emit feature_dropout --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// feature_dropout, backward                                   declared in ops/dropouts.py
//   above = uniform(seed, 0, index(d0), index(d1)) >= float32(p)
//   d_input = where(above, d_out * float32(1 / (1 - p)), 0)
// elementwise: 4 elements a thread; seed the same for all
extern "C" __global__ __launch_bounds__(256)
void feature_dropout_backward_f32(const int64_t* __restrict__ seed_ptr,  // []
                                  const float* __restrict__ d_out_ptr,   // [D0, D1]
                                  float* __restrict__ d_input_ptr,       // [D0, D1]
                                  double p, int n, fg::Divisor n1) {
  const float number = float(1.0 / (1.0 - p));
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  fg::assume_multiple<4>(j1);

  const int64_t seed = fg::load(seed_ptr);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float d_out = d_out_v[k];
    const int64_t index_d0 = j0;
    const int64_t index_d1 = j1 + k;
    const bool above = fg::uniform(seed, int64_t(0), index_d0, index_d1) >= float(p);
    d_input_v[k] = above ? d_out * number : 0.0f;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
