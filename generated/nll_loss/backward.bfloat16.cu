// fusegen emit nll_loss --which backward --dtype bfloat16 --dtype target=int64 --shape input=512,3072
//     --shape target=512
#include "fusegen.cuh"

// nll_loss, backward                                          declared in ops/classes.py
//   counted = (target != ignore_index) & (target >= 0) & (target < D1)
//   chosen = where(index(d1) == target, -(d_out * (1 / float32(total_3))), 0)
//   d_input = where(counted, chosen, 0)
// elementwise: 8 elements a thread; target broadcast; d_out, total_3 the same for all
extern "C" __global__ __launch_bounds__(256)
void nll_loss_backward_bf16(const int64_t* __restrict__ target_ptr,   // [D0]
                            const bf16* __restrict__ d_out_ptr,       // []
                            const int64_t* __restrict__ total_3_ptr,  // []
                            bf16* __restrict__ d_input_ptr,           // [D0, D1]
                            int64_t ignore_index, int64_t D1, int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const int64_t target = fg::load(target_ptr + j0);
  const float d_out = fg::load(d_out_ptr);
  const int64_t total_3 = fg::load(total_3_ptr);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int64_t index_d1 = j1 + k;
    const bool counted = ((target != ignore_index) & (target >= 0)) & (target < D1);
    const float chosen = fg::select(index_d1 == target, -(d_out * fg::divide(1.0f, float(total_3))), 0.0f);
    d_input_v[k] = counted ? chosen : 0.0f;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
