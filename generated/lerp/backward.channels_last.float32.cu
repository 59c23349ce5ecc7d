// Operands channels_last: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   sum_d_weight = sum[d0, d2, d3](d_out * d)
//   d_weight = sum_d_weight
// column: 64 neighbouring results a block, reduced over D0, D2, D3; cut into pieces that a second kernel combines in
//     order
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_f32(const float* __restrict__ input_ptr,       // [D0, D1, D2, D3]
                       const float* __restrict__ end_ptr,         // [D0, D1, D2, D3]
                       const float* __restrict__ weight_ptr,      // [D1, 1, 1]
                       const float* __restrict__ d_out_ptr,       // [D0, D1, D2, D3]
                       float* __restrict__ d_input_ptr,           // [D0, D1, D2, D3]
                       float* __restrict__ d_end_ptr,             // [D0, D1, D2, D3]
                       float* __restrict__ sum_d_weight_partial,  // [splits, m]
                       int m, int n, int chunk, int input_stride1, int end_stride1, int d_out_stride1,
                       int d_input_stride1, int d_end_stride1) {
  // A block owns 64 neighbouring results; its 16 rows of threads share the elements of one piece.
  const int result = int(blockIdx.x) * 64 + 4 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Vec<float, 4> sum_d_weight_v = {};
  if (inside) {
    const auto weight_v = fg::load_vector<4>(weight_ptr + j0);
    // Neighbouring elements go to one thread, where terms of opposite signs meet before they are large.
    int at = begin + 2 * threadIdx.y;
    for (; at + 1 < end; at += 32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int j1 = at + i;
        const auto input_v = fg::load_vector<4>(input_ptr + j0 + j1 * input_stride1);
        const auto end_v = fg::load_vector<4>(end_ptr + j0 + j1 * end_stride1);
        const auto d_out_v = fg::load_vector<4>(d_out_ptr + j0 + j1 * d_out_stride1);
        fg::Vec<float, 4> d_input_v;
        fg::Vec<float, 4> d_end_v;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float weight = weight_v[k];
          const float input = input_v[k];
          const float end_ = end_v[k];
          const float d_out = d_out_v[k];
          const float d = end_ - input;
          d_input_v[k] = d_out * (1.0f - weight);
          d_end_v[k] = d_out * weight;
          sum_d_weight_v[k] += d_out * d;
        }
        fg::store_vector<4>(d_input_ptr + (j0 + j1 * d_input_stride1), d_input_v);
        fg::store_vector<4>(d_end_ptr + (j0 + j1 * d_end_stride1), d_end_v);
      }
    }
#pragma unroll 1
    for (; at < end; ++at) {
      const int j1 = at;
      const auto input_v = fg::load_vector<4>(input_ptr + j0 + j1 * input_stride1);
      const auto end_v = fg::load_vector<4>(end_ptr + j0 + j1 * end_stride1);
      const auto d_out_v = fg::load_vector<4>(d_out_ptr + j0 + j1 * d_out_stride1);
      fg::Vec<float, 4> d_input_v;
      fg::Vec<float, 4> d_end_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float weight = weight_v[k];
        const float input = input_v[k];
        const float end_ = end_v[k];
        const float d_out = d_out_v[k];
        const float d = end_ - input;
        d_input_v[k] = d_out * (1.0f - weight);
        d_end_v[k] = d_out * weight;
        sum_d_weight_v[k] += d_out * d;
      }
      fg::store_vector<4>(d_input_ptr + (j0 + j1 * d_input_stride1), d_input_v);
      fg::store_vector<4>(d_end_ptr + (j0 + j1 * d_end_stride1), d_end_v);
    }
  }
  sum_d_weight_v = fg::column_sum<16, 16>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(sum_d_weight_partial + (int(blockIdx.y) * m + result), sum_d_weight_v);
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void lerp_backward_f32_finish(const float* sum_d_weight_partial,  // [splits, m]
                              float* __restrict__ d_weight_ptr,   // [D1, 1, 1]
                              int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  const int j0 = result;
  float sum_d_weight = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_d_weight += sum_d_weight_partial[piece * m + result];
  }
  sum_d_weight = fg::block_sum<128>(sum_d_weight);
  if (threadIdx.x > 0) return;
  fg::store(d_weight_ptr + j0, sum_d_weight);
}
