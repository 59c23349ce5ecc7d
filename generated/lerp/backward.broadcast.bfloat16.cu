// Operands broadcast: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   sum_d_input = sum[d1, d2, d3](d_out * (1 - weight))
//   d = end - input
//   d_end = d_out * weight
//   sum_d_weight = sum[d0, d2](d_out * d)
// rows: D1, D2, D3 in pieces, each read once; sum_d_weight added up over the rows of a group, then over groups by a
//     second kernel
extern "C" __global__ __launch_bounds__(256, 2)
void lerp_backward_bf16_d_end(const bf16* __restrict__ input_ptr,             // [D0, 1, 1, 1]
                              const bf16* __restrict__ end_ptr,               // [D0, D1, D2, D3]
                              const bf16* __restrict__ weight_ptr,            // [D1, 1, D3]
                              const bf16* __restrict__ d_out_ptr,             // [D0, D1, D2, D3]
                              bf16* __restrict__ d_end_ptr,                   // [D0, D1, D2, D3]
                              float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1, D2, D3]
                              float* __restrict__ sum_d_input_by_piece_ptr,   // [PIECES, D0]
                              int m, int n, fg::Divisor n2, fg::Divisor n3, int end_stride0, int end_stride1,
                              int end_stride2, int weight_stride1, int d_out_stride0, int d_out_stride1,
                              int d_out_stride2, int d_end_stride0, int d_end_stride1, int d_end_stride2) {
  // 256 threads take 4096 elements of a row.
  const int begin = int(blockIdx.y) * 4096;
  const int thread = threadIdx.x;
  fg::Vec<float, 4> sum_d_weight_v[4] = {};
  // All rows have these in common.
  fg::Raw<bf16, 4> weight_row[4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    if (at < n) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      fg::take(rest, n2);
      const int j1 = rest;
      weight_row[part] = fg::load_raw<4>(weight_ptr + j1 * weight_stride1 + j3);
    }
  }

  // The next row is read while the present one is worked on.
  float input_next;
  using end_element = fg::Raw<bf16, 4>;
  FUSEGEN_SHARED(end_element, end_row, [2][4][256]);
  using d_out_element = fg::Raw<bf16, 4>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][4][256]);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int end = n;
    const int j0 = next;
    input_next = fg::load(input_ptr + j0);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (256 * part + threadIdx.x);
      if (at < end) {
        int rest = at;
        const int j3 = fg::take(rest, n3);
        const int j2 = fg::take(rest, n2);
        const int j1 = rest;
        const int end_at = j0 * end_stride0 + j1 * end_stride1 + j2 * end_stride2 + j3;
        fg::load_async(&end_row[turn ^ 1][part][thread], end_ptr + end_at);
        const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + d_out_at);
      }
    }
  }
  for (; row < m; row += int(gridDim.x)) {
    const int end = n;
    const int j0 = row;
    const float input = input_next;
    turn ^= 1;
    fg::await_loads();
    if (row + int(gridDim.x) < m) {
      const int next = row + int(gridDim.x);
      const int end = n;
      const int j0 = next;
      input_next = fg::load(input_ptr + j0);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int at = begin + 4 * (256 * part + threadIdx.x);
        if (at < end) {
          int rest = at;
          const int j3 = fg::take(rest, n3);
          const int j2 = fg::take(rest, n2);
          const int j1 = rest;
          const int end_at = j0 * end_stride0 + j1 * end_stride1 + j2 * end_stride2 + j3;
          fg::load_async(&end_row[turn ^ 1][part][thread], end_ptr + end_at);
          const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
          fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + d_out_at);
        }
      }
    }

    float sum_d_input = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (256 * part + threadIdx.x);
      if (at >= end) break;
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = fg::take(rest, n2);
      const int j1 = rest;
      const auto end_v = fg::widen(end_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      fg::Vec<float, 4> d_end_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float end_ = end_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float d = end_ - input;
        d_end_v[k] = d_out * weight;
        sum_d_weight_v[part][k] += d_out * d;
        sum_d_input += d_out * (1.0f - weight);
      }
      fg::store_vector<4>(d_end_ptr + (j0 * d_end_stride0 + j1 * d_end_stride1 + j2 * d_end_stride2 + j3), d_end_v);
    }
    fg::row_sum<256, 1, 0>(sum_d_input);

    if (threadIdx.x == 0) {
      sum_d_input_by_piece_ptr[int(blockIdx.y) * m + row] = sum_d_input;
    }
    __syncthreads();
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    if (at >= n) break;
    fg::store_vector<4>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
  }
}

// lerp, backward                                              declared in ops/blends.py
//   sum_d_input = sum[pieces](sum_d_input_by_piece)
//   d_input = sum_d_input
// column: 16 neighbouring results a block, reduced over PIECES
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_bf16_d_input(const float* sum_d_input_by_piece_ptr,  // [PIECES, D0]
                                bf16* __restrict__ d_input_ptr,         // [D0, 1, 1, 1]
                                int m, int n, int sum_d_input_by_piece_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 16 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 16 + 2 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 2> sum_d_input_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const int sum_d_input_by_piece_at = j0 + j1 * sum_d_input_by_piece_stride1;
      const auto sum_d_input_by_piece_v = fg::load_vector<2>(sum_d_input_by_piece_ptr + sum_d_input_by_piece_at);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float sum_d_input_by_piece = sum_d_input_by_piece_v[k];
        sum_d_input_v[k] += sum_d_input_by_piece;
      }
    }
  }
  sum_d_input_v = fg::column_sum<32, 8>(sum_d_input_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<2>(d_input_ptr + j0, sum_d_input_v);
  }
}

// lerp, backward                                              declared in ops/blends.py
//   sum_d_weight = sum[groups, d2](sum_d_weight_by_group)
//   d_weight = sum_d_weight
// column: 128 neighbouring results a block, reduced over D2, GROUPS; cut into pieces that a second kernel combines in
//     order
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_bf16_d_weight(const float* sum_d_weight_by_group_ptr,    // [GROUPS, D1, D2, D3]
                                 float* __restrict__ sum_d_weight_partial,  // [splits, m]
                                 int m, int n, fg::Divisor n1, fg::Divisor n3, int chunk,
                                 int sum_d_weight_by_group_stride0, int sum_d_weight_by_group_stride2,
                                 int sum_d_weight_by_group_stride3) {
  fg::wait_for_previous_kernel();
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
    // Neighbouring elements go to one thread, where terms of opposite signs meet before they are large.
    int at = begin + 4 * threadIdx.y;
    for (; at + 3 < end; at += 32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int rest = at + i;
        const int j3 = fg::take(rest, n3);
        const int j2 = rest;
        const int sum_d_weight_by_group_at = j0 * sum_d_weight_by_group_stride0 + j1 +
                                             j2 * sum_d_weight_by_group_stride2 + j3 * sum_d_weight_by_group_stride3;
        const auto sum_d_weight_by_group_v = fg::load_vector<4>(sum_d_weight_by_group_ptr + sum_d_weight_by_group_at);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float sum_d_weight_by_group = sum_d_weight_by_group_v[k];
          sum_d_weight_v[k] += sum_d_weight_by_group;
        }
      }
    }
#pragma unroll 1
    for (; at < end; ++at) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = rest;
      const int sum_d_weight_by_group_at = j0 * sum_d_weight_by_group_stride0 + j1 +
                                           j2 * sum_d_weight_by_group_stride2 + j3 * sum_d_weight_by_group_stride3;
      const auto sum_d_weight_by_group_v = fg::load_vector<4>(sum_d_weight_by_group_ptr + sum_d_weight_by_group_at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum_d_weight_by_group = sum_d_weight_by_group_v[k];
        sum_d_weight_v[k] += sum_d_weight_by_group;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<8>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(sum_d_weight_partial + (int(blockIdx.y) * m + result), sum_d_weight_v);
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void lerp_backward_bf16_d_weight_finish(const float* sum_d_weight_partial,  // [splits, m]
                                        bf16* __restrict__ d_weight_ptr,    // [D1, 1, D3]
                                        int m, int splits, fg::Divisor n1, int d_weight_stride0) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  float sum_d_weight = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_d_weight += sum_d_weight_partial[piece * m + result];
  }
  sum_d_weight = fg::block_sum<128>(sum_d_weight);
  if (threadIdx.x > 0) return;
  fg::store(d_weight_ptr + j0 * d_weight_stride0 + j1, sum_d_weight);
}
