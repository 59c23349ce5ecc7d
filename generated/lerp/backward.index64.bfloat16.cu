// Operands index64: see PATTERNS in tools/generate.py
#include "fusegen.cuh"

// lerp, backward                                              declared in ops/blends.py
//   d = end - input
//   d_input = d_out * (1 - weight)
//   d_end = d_out * weight
//   sum_d_weight = sum[d0](d_out * d)
// rows: D1 in pieces, each read once; sum_d_weight added up over the rows of a group, then over groups by a second
//     kernel
extern "C" __global__ __launch_bounds__(256, 1)
void lerp_backward_bf16_d_input_and_1_more(const bf16* __restrict__ input_ptr,             // [D0, D1]
                                           const bf16* __restrict__ end_ptr,               // [D0, D1]
                                           const bf16* __restrict__ weight_ptr,            // [D1]
                                           const bf16* __restrict__ d_out_ptr,             // [D0, D1]
                                           bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                                           bf16* __restrict__ d_end_ptr,                   // [D0, D1]
                                           float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                           int64_t m, int64_t n, int64_t input_stride0, int64_t end_stride0,
                                           int64_t d_out_stride0, int64_t d_input_stride0, int64_t d_end_stride0) {
  // 256 threads take 8192 elements of a row.
  const int64_t begin = int64_t(blockIdx.y) * 8192;
  fg::Vec<float, 8> sum_d_weight_v[4] = {};
  // All rows have these in common.
  fg::Raw<bf16, 8> weight_row[4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int64_t at = begin + 8 * (256 * part + threadIdx.x);
    const int64_t j1 = at;
    weight_row[part] = fg::load_raw<8>(weight_ptr + j1);
  }

  int64_t row = int64_t(blockIdx.x);
  for (; row < m; row += int64_t(gridDim.x)) {
    fg::Raw<bf16, 8> input_row[4];
    fg::Raw<bf16, 8> end_row[4];
    fg::Raw<bf16, 8> d_out_row[4];
    const int64_t j0 = row;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int64_t at = begin + 8 * (256 * part + threadIdx.x);
      const int64_t j1 = at;
      input_row[part] = fg::load_raw<8>(input_ptr + j0 * input_stride0 + j1);
      end_row[part] = fg::load_raw<8>(end_ptr + j0 * end_stride0 + j1);
      d_out_row[part] = fg::load_raw<8>(d_out_ptr + j0 * d_out_stride0 + j1);
    }

#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int64_t at = begin + 8 * (256 * part + threadIdx.x);
      const int64_t j1 = at;
      const auto input_v = fg::widen(input_row[part]);
      const auto end_v = fg::widen(end_row[part]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto d_out_v = fg::widen(d_out_row[part]);
      fg::Vec<float, 8> d_input_v;
      fg::Vec<float, 8> d_end_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float end_ = end_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float d = end_ - input;
        d_input_v[k] = d_out * (1.0f - weight);
        d_end_v[k] = d_out * weight;
        sum_d_weight_v[part][k] += d_out * d;
      }
      fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
      fg::store_vector<8>(d_end_ptr + (j0 * d_end_stride0 + j1), d_end_v);
    }
  }

  // What this group of rows adds to each position.
  const int64_t group = int64_t(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int64_t at = begin + 8 * (256 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
  }
}

// lerp, backward                                              declared in ops/blends.py
//   sum_d_weight = sum[groups](sum_d_weight_by_group)
//   d_weight = sum_d_weight
// column: 128 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(256, 4)
void lerp_backward_bf16_d_weight(const float* sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                 bf16* __restrict__ d_weight_ptr,         // [D1]
                                 int m, int n, int sum_d_weight_by_group_stride1) {
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
      const int sum_d_weight_by_group_at = j0 + j1 * sum_d_weight_by_group_stride1;
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
    fg::store_vector<4>(d_weight_ptr + j0, sum_d_weight_v);
  }
}
