// fusegen emit residual_bias_hardsigmoid --which backward --dtype bfloat16 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_hardsigmoid, backward                         declared in ops/bias.py
//   total = input + bias
//   x = total + residual
//   inside_ = (x > -3) & (x < 3)
//   d_input = where(inside_, d_out * 0.16666666666666666, 0)
//   d_residual = d_input
//   sum_d_bias = sum[d0](d_input)
//   d_bias = sum_d_bias
// column: 256 neighbouring results a block, summed over D0; cut into pieces that a second kernel adds up in order
extern "C" __global__ __launch_bounds__(256, 4)
void residual_bias_hardsigmoid_backward_bf16(const bf16* __restrict__ input_ptr,      // [D0, D1]
                                             const bf16* __restrict__ bias_ptr,       // [D1]
                                             const bf16* __restrict__ residual_ptr,   // [D0, D1]
                                             const bf16* __restrict__ d_out_ptr,      // [D0, D1]
                                             bf16* __restrict__ d_input_ptr,          // [D0, D1]
                                             bf16* __restrict__ d_residual_ptr,       // [D0, D1]
                                             float* __restrict__ sum_d_bias_partial,  // [splits, m]
                                             int m, int n, int chunk, int input_stride1, int residual_stride1,
                                             int d_out_stride1, int d_input_stride1, int d_residual_stride1) {
  // A block owns 256 neighbouring results; its 8 rows of threads share the elements of one piece.
  const int result = int(blockIdx.x) * 256 + 8 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Vec<float, 8> sum_d_bias_v = {};
  if (inside) {
    const auto bias_v = fg::load_vector<8>(bias_ptr + j0);
    for (int at = begin + threadIdx.y; at < end; at += 8) {
      const int j1 = at;
      const auto input_v = fg::load_vector<8>(input_ptr + j0 + j1 * input_stride1);
      const auto residual_v = fg::load_vector<8>(residual_ptr + j0 + j1 * residual_stride1);
      const auto d_out_v = fg::load_vector<8>(d_out_ptr + j0 + j1 * d_out_stride1);
      fg::Vec<float, 8> d_input_v;
      fg::Vec<float, 8> d_residual_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float bias = bias_v[k];
        const float input = input_v[k];
        const float residual = residual_v[k];
        const float d_out = d_out_v[k];
        const float total = input + bias;
        const float x = total + residual;
        const bool inside_ = (x > -3.0f) & (x < 3.0f);
        const float d_input = inside_ ? d_out * 0.16666666666666666f : 0.0f;
        d_input_v[k] = d_input;
        d_residual_v[k] = d_input;
        sum_d_bias_v[k] += d_input;
      }
      fg::store_vector<8>(d_input_ptr + j0 + j1 * d_input_stride1, d_input_v);
      fg::store_vector<8>(d_residual_ptr + j0 + j1 * d_residual_stride1, d_residual_v);
    }
  }
  sum_d_bias_v = fg::column_sum<8>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<8>(sum_d_bias_partial + int(blockIdx.y) * m + result, sum_d_bias_v);
  }
}

// The pieces of each result, added in their order.
extern "C" __global__ __launch_bounds__(128)
void residual_bias_hardsigmoid_backward_bf16_finish(const float* __restrict__ sum_d_bias_partial,  // [splits, m]
                                                    bf16* __restrict__ d_bias_ptr,                 // [D1]
                                                    int m, int splits) {
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  const int j0 = result;
  float sum_d_bias = 0;
  for (int piece = 0; piece < splits; ++piece) {
    sum_d_bias += sum_d_bias_partial[int(piece) * m + result];
  }
  fg::store(d_bias_ptr + j0, sum_d_bias);
}
