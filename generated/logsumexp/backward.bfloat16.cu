// fusegen emit logsumexp --which backward --dtype bfloat16 --shape input=512,3072 --arg dim=-1
#include "fusegen.cuh"

// logsumexp, backward                                         declared in ops/softmaxes.py
//   same = abs(stop_gradient(top)) == inf
//   prod = d_out * (1 / guarded_sum_exp) * exp(input - stop_gradient(top))
//   d_input = where(same, 0, prod)
// elementwise: 8 elements a thread; d_out, top, guarded_sum_exp broadcast
extern "C" __global__ __launch_bounds__(256)
void logsumexp_backward_bf16(const bf16* __restrict__ input_ptr,             // [D0, D1]
                             const bf16* __restrict__ d_out_ptr,             // [D0]
                             const float* __restrict__ top_ptr,              // [D0]
                             const float* __restrict__ guarded_sum_exp_ptr,  // [D0]
                             bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                             int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const float d_out = fg::load(d_out_ptr + j0);
  const float top = fg::load(top_ptr + j0);
  const float guarded_sum_exp = fg::load(guarded_sum_exp_ptr + j0);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const bool same = fg::abs(top) == fg::infinity<float>();
    const float prod = d_out * fg::fast_divide(1.0f, guarded_sum_exp) * fg::fast_exp_from_top(input - top);
    d_input_v[k] = same ? 0.0f : prod;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
