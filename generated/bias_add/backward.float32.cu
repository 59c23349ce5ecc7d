// fusegen emit bias_add --which backward --dtype float32 --shape input=512,3072 --shape bias=3072
#include "fusegen.cuh"

// bias_add, backward: without a kernel
//   d_input = d_out, the same tensor

// bias_add, backward                                          declared in ops/bias.py
//   sum_d_bias = sum[d0](d_out)
//   d_bias = sum_d_bias
// column: 32 neighbouring results a block, reduced over D0
extern "C" __global__ __launch_bounds__(1024)
void bias_add_backward_f32(const float* __restrict__ d_out_ptr,  // [D0, D1]
                           float* __restrict__ d_bias_ptr,       // [D1]
                           int m, int n, int d_out_stride1) {
  // A block owns 32 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 32 + threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  float sum_d_bias = 0;
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const float d_out = fg::load(d_out_ptr + j0 + j1 * d_out_stride1);
      sum_d_bias += d_out;
    }
  }
  sum_d_bias = fg::column_sum<32>(sum_d_bias);

  if (inside && threadIdx.y == 0) {
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
