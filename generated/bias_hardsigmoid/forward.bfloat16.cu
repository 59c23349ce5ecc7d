// fusegen emit bias_hardsigmoid --which forward --dtype bfloat16 --shape input=512,3072 --shape bias=3072
#include "fusegen.cuh"

// bias_hardsigmoid, forward                                   declared in ops/bias.py
//   total = input + bias
//   inside_ = (total > -3) & (total < 3)
//   sum_total = total + 3
//   barrier_value = barrier(clamp(sum_total, 0, 6))
//   out = where(inside_, sum_total, barrier_value) / 6
// elementwise: 8 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void bias_hardsigmoid_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                                   const bf16* __restrict__ bias_ptr,   // [D1]
                                   bf16* __restrict__ out_ptr,          // [D0, D1]
                                   int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float bias = bias_v[k];
    const float total = input + bias;
    const bool inside_ = (total > -3.0f) & (total < 3.0f);
    const float sum_total = total + 3.0f;
    const float barrier_value = fg::clamp(sum_total, 0.0f, 6.0f);
    out_v[k] = (inside_ ? sum_total : barrier_value) / 6.0f;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
