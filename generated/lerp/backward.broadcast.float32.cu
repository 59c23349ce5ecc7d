// Operands broadcast: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d_end = d_out * weight
//   sum_d_input = sum[d1, d2, d3](d_out * (1 - weight))
//   d_input = sum_d_input
// row: a block sums over D1, D2, D3, along the fast axis; cut into pieces that a second kernel adds up in order
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_f32_d_end_and_1_more(const float* __restrict__ weight_ptr,     // [D1, 1, D3]
                                        const float* __restrict__ d_out_ptr,      // [D0, D1, D2, D3]
                                        float* __restrict__ d_end_ptr,            // [D0, D1, D2, D3]
                                        float* __restrict__ sum_d_input_partial,  // [splits, m]
                                        int m, int n, fg::Divisor n2, fg::Divisor n3, int chunk, int weight_stride1,
                                        int d_out_stride0, int d_out_stride1, int d_out_stride2, int d_end_stride0,
                                        int d_end_stride1, int d_end_stride2) {
  // A block owns a piece of one result's n elements.
  const int result = blockIdx.x;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  float sum_d_input = 0;
  for (int at = begin + 4 * threadIdx.x; at < end; at += 1024) {
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    const auto weight_v = fg::load_vector<4>(weight_ptr + j1 * weight_stride1 + j3);
    const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
    const auto d_out_v = fg::load_vector<4>(d_out_ptr + d_out_at);
    fg::Vec<float, 4> d_end_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float weight = weight_v[k];
      const float d_out = d_out_v[k];
      d_end_v[k] = d_out * weight;
      sum_d_input += d_out * (1.0f - weight);
    }
    fg::store_vector<4>(d_end_ptr + j0 * d_end_stride0 + j1 * d_end_stride1 + j2 * d_end_stride2 + j3, d_end_v);
  }
  sum_d_input = fg::block_sum<256>(sum_d_input);

  if (threadIdx.x == 0) {
    sum_d_input_partial[int(blockIdx.y) * m + result] = sum_d_input;
  }
}

// The pieces of each result, added in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void lerp_backward_f32_d_end_and_1_more_finish(const float* __restrict__ sum_d_input_partial,  // [splits, m]
                                               float* __restrict__ d_input_ptr,                // [D0, 1, 1, 1]
                                               int m, int splits) {
  const int result = blockIdx.x;
  const int j0 = result;
  float sum_d_input = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_d_input += sum_d_input_partial[int(piece) * m + result];
  }
  sum_d_input = fg::block_sum<128>(sum_d_input);
  if (threadIdx.x > 0) return;
  fg::store(d_input_ptr + j0, sum_d_input);
}

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   sum_d_weight = sum[d0, d2](d_out * d)
//   d_weight = sum_d_weight
// column: 128 neighbouring results a block, summed over D0, D2; cut into pieces that a second kernel adds up in order
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_f32_d_weight(const float* __restrict__ input_ptr,       // [D0, 1, 1, 1]
                                const float* __restrict__ end_ptr,         // [D0, D1, D2, D3]
                                const float* __restrict__ d_out_ptr,       // [D0, D1, D2, D3]
                                float* __restrict__ sum_d_weight_partial,  // [splits, m]
                                int m, int n, fg::Divisor n1, fg::Divisor n3, int chunk, int end_stride0,
                                int end_stride2, int end_stride3, int d_out_stride0, int d_out_stride2,
                                int d_out_stride3) {
  // A block owns 128 neighbouring results; its 8 rows of threads share the elements of one piece.
  const int result = int(blockIdx.x) * 128 + 4 * threadIdx.x;
  const bool inside = result < m;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Vec<float, 4> sum_d_weight_v = {};
  if (inside) {
    for (int at = begin + threadIdx.y; at < end; at += 8) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = rest;
      const float input = fg::load(input_ptr + j2);
      const auto end_v = fg::load_vector<4>(end_ptr + j0 * end_stride0 + j1 + j2 * end_stride2 + j3 * end_stride3);
      const int d_out_at = j0 * d_out_stride0 + j1 + j2 * d_out_stride2 + j3 * d_out_stride3;
      const auto d_out_v = fg::load_vector<4>(d_out_ptr + d_out_at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float end_ = end_v[k];
        const float d_out = d_out_v[k];
        const float d = end_ - input;
        sum_d_weight_v[k] += d_out * d;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<8>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(sum_d_weight_partial + int(blockIdx.y) * m + result, sum_d_weight_v);
  }
}

// The pieces of each result, added in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void lerp_backward_f32_d_weight_finish(const float* __restrict__ sum_d_weight_partial,  // [splits, m]
                                       float* __restrict__ d_weight_ptr,                // [D1, 1, D3]
                                       int m, int splits, fg::Divisor n1, int d_weight_stride0) {
  const int result = blockIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  float sum_d_weight = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_d_weight += sum_d_weight_partial[int(piece) * m + result];
  }
  sum_d_weight = fg::block_sum<128>(sum_d_weight);
  if (threadIdx.x > 0) return;
  fg::store(d_weight_ptr + j0 * d_weight_stride0 + j1, sum_d_weight);
}
