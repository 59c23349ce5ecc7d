// fusegen emit bias_softsign --which backward --dtype float32 --shape input=512,3072 --shape bias=3072
#include "fusegen.cuh"

// bias_softsign, backward                                     declared in ops/bias.py
//   total = input + bias
//   sum = 1 + abs(total)
//   d_input = d_out * (1 / sum / sum)
//   sum_d_bias = sum[d0](d_input)
//   d_bias = sum_d_bias
// column: 128 neighbouring results a block, summed over D0; cut into pieces that a second kernel adds up in order
extern "C" __global__ __launch_bounds__(256, 4)
void bias_softsign_backward_f32(const float* __restrict__ input_ptr,     // [D0, D1]
                                const float* __restrict__ bias_ptr,      // [D1]
                                const float* __restrict__ d_out_ptr,     // [D0, D1]
                                float* __restrict__ d_input_ptr,         // [D0, D1]
                                float* __restrict__ sum_d_bias_partial,  // [splits, m]
                                int m, int n, int chunk, int input_stride1, int d_out_stride1, int d_input_stride1) {
  // A block owns 128 neighbouring results; its 8 rows of threads share the elements of one piece.
  const int result = int(blockIdx.x) * 128 + 4 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Vec<float, 4> sum_d_bias_v = {};
  if (inside) {
    const auto bias_v = fg::load_vector<4>(bias_ptr + j0);
    for (int at = begin + threadIdx.y; at < end; at += 8) {
      const int j1 = at;
      const auto input_v = fg::load_vector<4>(input_ptr + j0 + j1 * input_stride1);
      const auto d_out_v = fg::load_vector<4>(d_out_ptr + j0 + j1 * d_out_stride1);
      fg::Vec<float, 4> d_input_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float bias = bias_v[k];
        const float input = input_v[k];
        const float d_out = d_out_v[k];
        const float total = input + bias;
        const float sum = 1.0f + fg::abs(total);
        const float d_input = d_out * (1.0f / sum / sum);
        d_input_v[k] = d_input;
        sum_d_bias_v[k] += d_input;
      }
      fg::store_vector<4>(d_input_ptr + j0 + j1 * d_input_stride1, d_input_v);
    }
  }
  sum_d_bias_v = fg::column_sum<8>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(sum_d_bias_partial + int(blockIdx.y) * m + result, sum_d_bias_v);
  }
}

// The pieces of each result, added in their order.
extern "C" __global__ __launch_bounds__(128)
void bias_softsign_backward_f32_finish(const float* __restrict__ sum_d_bias_partial,  // [splits, m]
                                       float* __restrict__ d_bias_ptr,                // [D1]
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
