// fusegen emit conv1x1 --which backward --dtype bfloat16 --shape input=8,64,56,56 --shape weight=128,64,1,1
//     --shape bias=128
#include "fusegen.cuh"

// conv1x1, backward: without a kernel
//   d_input[D0, D4, D2, D3] = d_last(d1 -> d7) @ weight(d1 -> d7, d5 -> d4) over [D7]
//   d_weight[D1, D5] = input(d0 -> d8, d2 -> d9, d3 -> d10, d4 -> d5) @ d_last(d0 -> d8, d2 -> d9, d3 -> d10) over
//       [D8, D9, D10]

// conv1x1, backward prologue                                  declared in ops/linear.py
//   sum_d_bias = sum[d0, d2, d3](d_last)
//   d_bias = sum_d_bias
// row: a block a result, reduced over D0, D2, D3, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void conv1x1_backward_prologue_bf16(const bf16* __restrict__ d_last_ptr,  // [D0, D1, D2, D3]
                                    bf16* __restrict__ d_bias_ptr,        // [D1]
                                    int m, int n, fg::Divisor n2, int d_last_stride0, int d_last_stride1) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  fg::Chains<float> sum_d_bias_chains;
  for (int at = 8 * threadIdx.x; at < n; at += 2048) {
    int rest = at;
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    const auto d_last_v = fg::load_vector<8>(d_last_ptr + j0 * d_last_stride0 + j1 * d_last_stride1 + j2);
    float sum_d_bias_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float d_last = d_last_v[k];
      sum_d_bias_part += d_last;
    }
    sum_d_bias_chains.add(sum_d_bias_part);
  }
  const float sum_d_bias = fg::block_sum<256>(sum_d_bias_chains.total());

  if (threadIdx.x == 0) {
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
