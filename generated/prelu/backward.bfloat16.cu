// fusegen emit prelu --which backward --dtype bfloat16 --shape input=512,3072 --shape weight=3072
#include "fusegen.cuh"

// prelu, backward                                             declared in ops/activations.py
//   above_input = input > 0
//   d_input = d_out * where(above_input, 1, weight)
//   sum_d_weight = sum[d0](where(above_input, 0, d_out * input))
// rows: D1 in pieces, each read once; sum_d_weight added up over the rows of a group, then over groups by a second
//     kernel
extern "C" __global__ __launch_bounds__(192, 2)
void prelu_backward_bf16_d_input(const bf16* __restrict__ input_ptr,             // [D0, D1]
                                 const bf16* __restrict__ weight_ptr,            // [D1]
                                 const bf16* __restrict__ d_out_ptr,             // [D0, D1]
                                 bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                                 float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                 int m, int n, int input_stride0, int d_out_stride0, int d_input_stride0) {
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const int thread = threadIdx.x;
  fg::Vec<float, 8> sum_d_weight_v[2] = {};
  // All rows have these in common.
  fg::Raw<bf16, 8> weight_row[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    weight_row[part] = fg::load_raw<8>(weight_ptr + j1);
  }

  // The next row is read while the present one is worked on.
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][2][192]);
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][2][192]);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int j0 = next;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
      fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
    }
  }
  for (; row < m; row += int(gridDim.x)) {
    const int j0 = row;
    turn ^= 1;
    fg::await_loads();
    if (row + int(gridDim.x) < m) {
      const int next = row + int(gridDim.x);
      const int j0 = next;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int at = begin + 8 * (192 * part + threadIdx.x);
        const int j1 = at;
        fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
      }
    }

#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      fg::Vec<float, 8> d_input_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const bool above_input = input > 0.0f;
        d_input_v[k] = d_out * (above_input ? 1.0f : weight);
        sum_d_weight_v[part][k] += above_input ? 0.0f : d_out * input;
      }
      fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
    }
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
  }
}

// prelu, backward                                             declared in ops/activations.py
//   sum_d_weight = sum[groups](sum_d_weight_by_group)
//   d_weight = sum_d_weight
// column: 32 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(1024)
void prelu_backward_bf16_d_weight(const float* sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                  bf16* __restrict__ d_weight_ptr,         // [D1]
                                  int m, int n, int sum_d_weight_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 32 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 32 + threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  float sum_d_weight = 0;
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const float sum_d_weight_by_group = fg::load(sum_d_weight_by_group_ptr + j0 + j1 * sum_d_weight_by_group_stride1);
      sum_d_weight += sum_d_weight_by_group;
    }
  }
  sum_d_weight = fg::column_sum<32>(sum_d_weight);

  if (inside && threadIdx.y == 0) {
    fg::store(d_weight_ptr + j0, sum_d_weight);
  }
}
