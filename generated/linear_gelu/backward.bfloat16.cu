// fusegen emit linear_gelu --which backward --dtype bfloat16 --shape input=512,768 --shape weight=3072,768
//     --shape bias=3072
#include "fusegen.cuh"

// linear_gelu, backward: without a kernel
//   d_input[D0, D2] = prod_d_out(d1 -> d5) @ weight(d1 -> d5, d3 -> d2) over [D5]
//   d_weight[D1, D3] = input(d0 -> d6, d2 -> d3) @ prod_d_out(d0 -> d6) over [D6]

// linear_gelu, backward prologue                              declared in ops/linear.py
//   prod_x = -0.7071067811865476 * x
//   prod = 0.3989422804014327 * x * exp(-prod_x^2)
//   prod_d_out = d_out * (prod + 0.5 * erfc(prod_x))
//   sum_d_bias = sum[d0](prod_d_out)
// rows: D1 in pieces, each read once; sum_d_bias added up over the rows of a group, then over groups by a second kernel
extern "C" __global__ __launch_bounds__(192, 2)
void linear_gelu_backward_prologue_bf16_prod_d_out(const bf16* __restrict__ d_out_ptr,           // [D0, D1]
                                                   const bf16* __restrict__ x_ptr,               // [D0, D1]
                                                   bf16* __restrict__ prod_d_out_ptr,            // [D0, D1]
                                                   float* __restrict__ sum_d_bias_by_group_ptr,  // [GROUPS, D1]
                                                   int m, int n, int d_out_stride0, int x_stride0,
                                                   int prod_d_out_stride0) {
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const int thread = threadIdx.x;
  fg::Vec<float, 8> sum_d_bias_v[2] = {};
  // The next row is read while the present one is worked on.
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][2][192]);
  using x_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(x_element, x_row, [2][2][192]);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int j0 = next;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
      fg::load_async(&x_row[turn ^ 1][part][thread], x_ptr + j0 * x_stride0 + j1);
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
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
        fg::load_async(&x_row[turn ^ 1][part][thread], x_ptr + j0 * x_stride0 + j1);
      }
    }

#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      const auto x_v = fg::widen(x_row[turn][part][thread]);
      fg::Vec<float, 8> prod_d_out_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float d_out = d_out_v[k];
        const float x = x_v[k];
        const float prod_x = -0.7071067811865476f * x;
        const float prod = 0.3989422804014327f * x * fg::fast_exp_below(-(prod_x * prod_x));
        const float prod_d_out = d_out * (prod + 0.5f * fg::fast_erfc(prod_x));
        prod_d_out_v[k] = prod_d_out;
        sum_d_bias_v[part][k] += prod_d_out;
      }
      fg::store_vector<8>(prod_d_out_ptr + (j0 * prod_d_out_stride0 + j1), prod_d_out_v);
    }
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_bias_by_group_ptr + (group * n + at), sum_d_bias_v[part]);
  }
}

// linear_gelu, backward prologue                              declared in ops/linear.py
//   sum_d_bias = sum[groups](sum_d_bias_by_group)
//   d_bias = sum_d_bias
// column: 32 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(1024)
void linear_gelu_backward_prologue_bf16_d_bias(const float* sum_d_bias_by_group_ptr,  // [GROUPS, D1]
                                               bf16* __restrict__ d_bias_ptr,         // [D1]
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
