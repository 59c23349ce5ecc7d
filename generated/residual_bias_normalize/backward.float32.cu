// fusegen emit residual_bias_normalize --which backward --dtype float32 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072
#include "fusegen.cuh"

// residual_bias_normalize, backward: without a kernel
//   d_residual = d_input, the same tensor

// residual_bias_normalize, backward                           declared in ops/fused_norms.py
//   same_total = total == 0
//   sqrt_total = sqrt(total)
//   chosen_total = where(same_total, total, sqrt_total)
//   length = clamp(chosen_total, eps, inf)
//   total_2 = input + bias + residual
//   sum_total = sum[d1](d_out * total_2 * (where(same_total, 1, 0.5 / sqrt_total) / length))
//   prod = (2 * bias + 2 * input + 2 * residual) * (sum_total / length)
//   chosen = where(chosen_total >= eps and chosen_total <= inf, -prod, 0)
//   d_input = d_out * (1 / length) + chosen
//   sum_d_bias = sum[d0](d_input)
// rows: 192 threads a row over D1, which stays in shared memory: read once; sum_d_bias added up over the rows of a
//     group, then over groups by a second kernel
extern "C" __global__ __launch_bounds__(192, 5)
void residual_bias_normalize_backward_f32_d_input(const float* __restrict__ input_ptr,          // [D0, D1]
                                                  const float* __restrict__ bias_ptr,           // [D1]
                                                  const float* __restrict__ residual_ptr,       // [D0, D1]
                                                  const float* __restrict__ d_out_ptr,          // [D0, D1]
                                                  const float* __restrict__ total_ptr,          // [D0]
                                                  float* __restrict__ d_input_ptr,              // [D0, D1]
                                                  float* __restrict__ sum_d_bias_by_group_ptr,  // [GROUPS, D1]
                                                  float eps, int m, int n, int input_stride0, int residual_stride0,
                                                  int d_out_stride0, int d_input_stride0) {
  const int thread = threadIdx.x;
  fg::Vec<float, 4> sum_d_bias_v[4] = {};
  // All rows have these in common.
  using bias_rows = fg::Raw<float, 4>[4][192];
  bias_rows& bias_row = fg::dynamic_shared<bias_rows>();
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&bias_row[part][thread], bias_ptr + j1);
  }

  // The next row is read while the present one is worked on.
  float total_next;
  using input_rows = fg::Raw<float, 4>[2][4][192];
  input_rows& input_row = fg::behind<input_rows>(bias_row);
  using residual_rows = fg::Raw<float, 4>[2][4][192];
  residual_rows& residual_row = fg::behind<residual_rows>(input_row);
  using d_out_rows = fg::Raw<float, 4>[2][4][192];
  d_out_rows& d_out_row = fg::behind<d_out_rows>(residual_row);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int j0 = next;
    total_next = fg::load(total_ptr + j0);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = 4 * (192 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
      fg::load_async(&residual_row[turn ^ 1][part][thread], residual_ptr + j0 * residual_stride0 + j1);
      fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
    }
  }
  for (; row < m; row += int(gridDim.x)) {
    const int j0 = row;
    const float total = total_next;
    turn ^= 1;
    fg::await_loads();
    if (row + int(gridDim.x) < m) {
      const int next = row + int(gridDim.x);
      const int j0 = next;
      total_next = fg::load(total_ptr + j0);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int at = 4 * (192 * part + threadIdx.x);
        const int j1 = at;
        fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
        fg::load_async(&residual_row[turn ^ 1][part][thread], residual_ptr + j0 * residual_stride0 + j1);
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
      }
    }
    const bool same_total = total == 0.0f;
    const float sqrt_total = sqrtf(total);
    const float chosen_total = same_total ? total : sqrt_total;
    const float length = fg::clamp(chosen_total, eps, fg::infinity<float>());

    float sum_total = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto bias_v = fg::widen(bias_row[part][thread]);
      const auto residual_v = fg::widen(residual_row[turn][part][thread]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        const float bias = bias_v[k];
        const float residual = residual_v[k];
        const float d_out = d_out_v[k];
        const float total_2 = input + bias + residual;
        sum_total += d_out * total_2 * ((same_total ? 1.0f : 0.5f / sqrt_total) / length);
      }
    }
    fg::row_sum<192, 1, 0>(sum_total);

#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = 4 * (192 * part + threadIdx.x);
      const int j1 = at;
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto bias_v = fg::widen(bias_row[part][thread]);
      const auto residual_v = fg::widen(residual_row[turn][part][thread]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      fg::Vec<float, 4> d_input_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        const float bias = bias_v[k];
        const float residual = residual_v[k];
        const float d_out = d_out_v[k];
        const float prod = (2.0f * bias + 2.0f * input + 2.0f * residual) * (sum_total / length);
        const float chosen = chosen_total >= eps && chosen_total <= fg::infinity<float>() ? -prod : 0.0f;
        const float d_input = d_out * (1.0f / length) + chosen;
        d_input_v[k] = d_input;
        sum_d_bias_v[part][k] += d_input;
      }
      fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
    }
    __syncthreads();
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    fg::store_vector<4>(sum_d_bias_by_group_ptr + (group * n + at), sum_d_bias_v[part]);
  }
}

// residual_bias_normalize, backward                           declared in ops/fused_norms.py
//   sum_d_bias = sum[groups](sum_d_bias_by_group)
//   d_bias = sum_d_bias
// column: 32 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(1024)
void residual_bias_normalize_backward_f32_d_bias(const float* sum_d_bias_by_group_ptr,  // [GROUPS, D1]
                                                 float* __restrict__ d_bias_ptr,        // [D1]
                                                 int m, int n, int sum_d_bias_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 32 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 32 + threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  float sum_d_bias = 0;
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const float sum_d_bias_by_group = fg::load(sum_d_bias_by_group_ptr + j0 + j1 * sum_d_bias_by_group_stride1);
      sum_d_bias += sum_d_bias_by_group;
    }
  }
  sum_d_bias = fg::column_sum<32>(sum_d_bias);

  if (inside && threadIdx.y == 0) {
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
