// Operands index64: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   sum_d_weight = sum[d0](d_out * d)
//   d_weight = sum_d_weight
// serial: a thread a result, which sums over D0
extern "C" __global__ __launch_bounds__(256)
void lerp_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                        const bf16* __restrict__ end_ptr,     // [D0, D1]
                        const bf16* __restrict__ weight_ptr,  // [D1]
                        const bf16* __restrict__ d_out_ptr,   // [D0, D1]
                        bf16* __restrict__ d_input_ptr,       // [D0, D1]
                        bf16* __restrict__ d_end_ptr,         // [D0, D1]
                        bf16* __restrict__ d_weight_ptr,      // [D1]
                        int64_t m, int64_t n, int64_t input_stride1, int64_t end_stride1, int64_t d_out_stride1,
                        int64_t d_input_stride1, int64_t d_end_stride1) {
  // A thread owns one result and adds up its elements by itself.
  const int64_t result = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  const int64_t j0 = result;
  const float weight = fg::load(weight_ptr + j0);

  float sum_d_weight = 0;
  for (int64_t at = 0; at < n; ++at) {
    const int64_t j1 = at;
    const float input = fg::load(input_ptr + j0 + j1 * input_stride1);
    const float end_ = fg::load(end_ptr + j0 + j1 * end_stride1);
    const float d_out = fg::load(d_out_ptr + j0 + j1 * d_out_stride1);
    const float d = end_ - input;
    fg::store(d_input_ptr + j0 + j1 * d_input_stride1, d_out * (1.0f - weight));
    fg::store(d_end_ptr + j0 + j1 * d_end_stride1, d_out * weight);
    sum_d_weight += d_out * d;
  }

  fg::store(d_weight_ptr + j0, sum_d_weight);
}
