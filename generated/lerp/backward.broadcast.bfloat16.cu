// Operands broadcast: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_end = d_out * weight
//   sum_d_input_part = sum[d2](d_out)
//   sum_d_weight_part = sum[d2](d_out * d)
// column: 64 neighbouring results a block, reduced over D2
extern "C" __global__ __launch_bounds__(1024)
void lerp_backward_bf16_d_end_and_2_more(const bf16* __restrict__ input_ptr,         // [D0, 1, 1, 1]
                                         const bf16* __restrict__ end_ptr,           // [D0, D1, D2, D3]
                                         const bf16* __restrict__ weight_ptr,        // [D1, 1, D3]
                                         const bf16* __restrict__ d_out_ptr,         // [D0, D1, D2, D3]
                                         bf16* __restrict__ d_end_ptr,               // [D0, D1, D2, D3]
                                         float* __restrict__ sum_d_input_part_ptr,   // [D0, D1, D3]
                                         float* __restrict__ sum_d_weight_part_ptr,  // [D0, D1, D3]
                                         int m, int n, fg::Divisor n1, fg::Divisor n2, int end_stride0,
                                         int end_stride1, int end_stride3, int weight_stride1, int d_out_stride0,
                                         int d_out_stride1, int d_out_stride3, int d_end_stride0, int d_end_stride1,
                                         int d_end_stride3, int sum_d_input_part_stride0,
                                         int sum_d_input_part_stride1, int sum_d_weight_part_stride0,
                                         int sum_d_weight_part_stride1) {
  // A block owns 64 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 2 * threadIdx.x;
  const bool inside = result < m;
  int rest = result;
  const int j2 = fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  fg::Vec<float, 2> sum_d_input_part_v = {};
  fg::Vec<float, 2> sum_d_weight_part_v = {};
  if (inside) {
    const float input = fg::load(input_ptr + j0);
    const auto weight_v = fg::load_vector<2>(weight_ptr + j1 * weight_stride1 + j2);
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j3 = at;
      const auto end_v = fg::load_vector<2>(end_ptr + j0 * end_stride0 + j1 * end_stride1 + j2 + j3 * end_stride3);
      const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 + j3 * d_out_stride3;
      const auto d_out_v = fg::load_vector<2>(d_out_ptr + d_out_at);
      fg::Vec<float, 2> d_end_v;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float weight = weight_v[k];
        const float end_ = end_v[k];
        const float d_out = d_out_v[k];
        const float d = end_ - input;
        d_end_v[k] = d_out * weight;
        sum_d_input_part_v[k] += d_out;
        sum_d_weight_part_v[k] += d_out * d;
      }
      fg::store_vector<2>(d_end_ptr + (j0 * d_end_stride0 + j1 * d_end_stride1 + j2 + j3 * d_end_stride3), d_end_v);
    }
  }
  sum_d_input_part_v = fg::column_sum<32>(sum_d_input_part_v);
  sum_d_weight_part_v = fg::column_sum<32>(sum_d_weight_part_v);

  if (inside && threadIdx.y == 0) {
    const int sum_d_input_part_at = j0 * sum_d_input_part_stride0 + j1 * sum_d_input_part_stride1 + j2;
    fg::store_vector<2>(sum_d_input_part_ptr + sum_d_input_part_at, sum_d_input_part_v);
    const int sum_d_weight_part_at = j0 * sum_d_weight_part_stride0 + j1 * sum_d_weight_part_stride1 + j2;
    fg::store_vector<2>(sum_d_weight_part_ptr + sum_d_weight_part_at, sum_d_weight_part_v);
  }
}

// lerp, backward                                              declared in ops/blends.py
//   sum_d_input = sum[d1, d3](sum_d_input_part * (1 - weight))
//   d_input = sum_d_input
// rows: 64 threads a row over D1, D3, which stays in registers: read once
extern "C" __global__ __launch_bounds__(128, 8)
void lerp_backward_bf16_d_input(const bf16* __restrict__ weight_ptr,  // [D1, 1, D3]
                                const float* sum_d_input_part_ptr,    // [D0, D1, D3]
                                bf16* __restrict__ d_input_ptr,       // [D0, 1, 1, 1]
                                int m, int n, int sum_d_input_part_stride0) {
  fg::wait_for_previous_kernel();
  const int first = 2 * int(blockIdx.x);
  const int row = fg::at_most(int(first + threadIdx.y), m - 1);
  const int end = first + threadIdx.y < m ? n : 0;
  fg::Raw<float, 4> sum_d_input_part_row[4];
  const int j0 = row;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (64 * part + threadIdx.x);
    if (at < end) {
      const int j1 = at;
      sum_d_input_part_row[part] = fg::load_raw<4>(sum_d_input_part_ptr + j0 * sum_d_input_part_stride0 + j1);
    }
  }

  float sum_d_input = 0;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (64 * part + threadIdx.x);
    if (at >= end) break;
    const int j1 = at;
    const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
    const auto sum_d_input_part_v = fg::widen(sum_d_input_part_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float weight = weight_v[k];
      const float sum_d_input_part = sum_d_input_part_v[k];
      sum_d_input += sum_d_input_part * (1.0f - weight);
    }
  }
  fg::row_sum<64, 2, 0>(sum_d_input);

  if (threadIdx.x == 0 && end > 0) {
    fg::store(d_input_ptr + j0, sum_d_input);
  }
}

// lerp, backward                                              declared in ops/blends.py
//   sum_d_weight = sum[d0](sum_d_weight_part)
//   d_weight = sum_d_weight
// column: 128 neighbouring results a block, reduced over D0
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_bf16_d_weight(const float* sum_d_weight_part_ptr,  // [D0, D1, D3]
                                 bf16* __restrict__ d_weight_ptr,     // [D1, 1, D3]
                                 int m, int n, int sum_d_weight_part_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 128 neighbouring results; its 8 rows of threads share the elements.
  const int result = int(blockIdx.x) * 128 + 4 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 4> sum_d_weight_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 8) {
      const int j1 = at;
      const auto sum_d_weight_part_v = fg::load_vector<4>(sum_d_weight_part_ptr + j0 + j1 * sum_d_weight_part_stride1);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum_d_weight_part = sum_d_weight_part_v[k];
        sum_d_weight_v[k] += sum_d_weight_part;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<8>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(d_weight_ptr + j0, sum_d_weight_v);
  }
}
