// Operands index64: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   sum_d_weight = sum[d0](d_out * d)
//   d_weight = sum_d_weight
// serial: a thread a result, which sums over D0
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_f32_d_weight(const float* __restrict__ input_ptr,  // [D0, D1]
                                const float* __restrict__ end_ptr,    // [D0, D1]
                                const float* __restrict__ d_out_ptr,  // [D0, D1]
                                float* __restrict__ d_weight_ptr,     // [D1]
                                int64_t m, int64_t n, int64_t input_stride1, int64_t end_stride1,
                                int64_t d_out_stride1) {
  // A thread owns one result and adds up its elements by itself.
  const int64_t result = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  const int64_t j0 = result;

  float sum_d_weight = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t j1 = i;
    const float input = fg::load(input_ptr + j0 + j1 * input_stride1);
    const float end = fg::load(end_ptr + j0 + j1 * end_stride1);
    const float d_out = fg::load(d_out_ptr + j0 + j1 * d_out_stride1);
    const float d = end - input;
    sum_d_weight += d_out * d;
  }

  fg::store(d_weight_ptr + j0, sum_d_weight);
}

// lerp, backward                                              declared in ops/blends.py
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
// elementwise: 4 elements a thread; weight broadcast
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_f32_d_input_and_1_more(const float* __restrict__ weight_ptr,  // [D1]
                                          const float* __restrict__ d_out_ptr,   // [D0, D1]
                                          float* __restrict__ d_input_ptr,       // [D0, D1]
                                          float* __restrict__ d_end_ptr,         // [D0, D1]
                                          int64_t n, fg::Divisor64 n1) {
  // Locate: each thread owns 4 consecutive elements.
  const int64_t i = 4 * (int64_t(blockIdx.x) * 256 + threadIdx.x);
  if (i >= n) return;
  int64_t rest = i;
  const int64_t j1 = fg::take(rest, n1);

  const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + i);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> d_end_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float weight = weight_v[k];
    const float d_out = d_out_v[k];
    d_input_v[k] = d_out * (1.0f - weight);
    d_end_v[k] = d_out * weight;
  }
  fg::store_vector<4>(d_input_ptr + i, d_input_v);
  fg::store_vector<4>(d_end_ptr + i, d_end_v);
}
