// fusegen emit mlp --which backward --dtype bfloat16 --shape input=512,768 --shape up=3072,768 --shape up_bias=3072
//     --shape down=768,3072 --shape down_bias=768
#include "fusegen.cuh"

// mlp, backward: without a kernel
//   d_down[D1, D5] = hidden(d0 -> d9, d3 -> d5) @ d_out(d0 -> d9) over [D9]
//   d_product_2[D0, D3] = d_out(d1 -> d8) @ down(d1 -> d8, d5 -> d3) over [D8]
//   d_input[D0, D2] = prod_d_product_2(d3 -> d10) @ up(d3 -> d10, d4 -> d2) over [D10]
//   d_up[D3, D4] = input(d0 -> d11, d2 -> d4) @ prod_d_product_2(d0 -> d11) over [D11]

// mlp, backward prologue                                      declared in ops/mlps.py
//   sum_d_down_bias = sum[d0](d_out)
//   d_down_bias = sum_d_down_bias
// column: 256 neighbouring results a block, reduced over D0; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void mlp_backward_prologue_bf16(const bf16* __restrict__ d_out_ptr,           // [D0, D1]
                                float* __restrict__ sum_d_down_bias_partial,  // [splits, m]
                                int m, int n, int chunk, int d_out_stride1) {
  // A block owns 256 neighbouring results; its 8 rows of threads share the elements of one piece.
  const int result = int(blockIdx.x) * 256 + 8 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Vec<float, 8> sum_d_down_bias_v = {};
  if (inside) {
    // Neighbouring elements go to one thread, where terms of opposite signs meet before they are large.
    int at = begin + 4 * threadIdx.y;
    for (; at + 3 < end; at += 32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j1 = at + i;
        const auto d_out_v = fg::load_vector<8>(d_out_ptr + j0 + j1 * d_out_stride1);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const float d_out = d_out_v[k];
          sum_d_down_bias_v[k] += d_out;
        }
      }
    }
#pragma unroll 1
    for (; at < end; ++at) {
      const int j1 = at;
      const auto d_out_v = fg::load_vector<8>(d_out_ptr + j0 + j1 * d_out_stride1);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float d_out = d_out_v[k];
        sum_d_down_bias_v[k] += d_out;
      }
    }
  }
  sum_d_down_bias_v = fg::column_sum<8>(sum_d_down_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<8>(sum_d_down_bias_partial + (int(blockIdx.y) * m + result), sum_d_down_bias_v);
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void mlp_backward_prologue_bf16_finish(const float* sum_d_down_bias_partial,  // [splits, m]
                                       bf16* __restrict__ d_down_bias_ptr,    // [D1]
                                       int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  const int j0 = result;
  float sum_d_down_bias = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_d_down_bias += sum_d_down_bias_partial[piece * m + result];
  }
  sum_d_down_bias = fg::block_sum<128>(sum_d_down_bias);
  if (threadIdx.x > 0) return;
  fg::store(d_down_bias_ptr + j0, sum_d_down_bias);
}

// mlp, backward between 1                                     declared in ops/mlps.py
//   prod_x = -0.7071067811865476 * x
//   prod = 0.3989422804014327 * x * exp(-prod_x^2)
//   erfc_value = erfc(prod_x)
//   prod_d_product_2 = d_product_2 * (prod + 0.5 * erfc_value)
//   sum_d_up_bias = sum[d0](prod_d_product_2)
// rows: D3 in pieces, each read once; sum_d_up_bias added up over the rows of a group, then over groups by a second
//     kernel
extern "C" __global__ __launch_bounds__(192, 2)
void mlp_backward_between_1_bf16_prod_d_product_2(const bf16* __restrict__ x_ptr,                  // [D0, D3]
                                                  const bf16* d_product_2_ptr,                     // [D0, D3]
                                                  bf16* __restrict__ prod_d_product_2_ptr,         // [D0, D3]
                                                  float* __restrict__ sum_d_up_bias_by_group_ptr,  // [GROUPS, D3]
                                                  int m, int n, int x_stride0, int d_product_2_stride0,
                                                  int prod_d_product_2_stride0) {
  fg::wait_for_previous_kernel();
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const int thread = threadIdx.x;
  fg::Vec<float, 8> sum_d_up_bias_v[2] = {};
  // The next row is read while the present one is worked on.
  using x_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(x_element, x_row, [2][2][192]);
  using d_product_2_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_product_2_element, d_product_2_row, [2][2][192]);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int j0 = next;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&x_row[turn ^ 1][part][thread], x_ptr + j0 * x_stride0 + j1);
      fg::load_async(&d_product_2_row[turn ^ 1][part][thread], d_product_2_ptr + j0 * d_product_2_stride0 + j1);
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
        fg::load_async(&x_row[turn ^ 1][part][thread], x_ptr + j0 * x_stride0 + j1);
        fg::load_async(&d_product_2_row[turn ^ 1][part][thread], d_product_2_ptr + j0 * d_product_2_stride0 + j1);
      }
    }

#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = begin + 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      const auto x_v = fg::widen(x_row[turn][part][thread]);
      const auto d_product_2_v = fg::widen(d_product_2_row[turn][part][thread]);
      fg::Vec<float, 8> prod_d_product_2_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float x = x_v[k];
        const float d_product_2 = d_product_2_v[k];
        const float prod_x = -0.7071067811865476f * x;
        const float prod = 0.3989422804014327f * x * fg::fast_exp_below(-(prod_x * prod_x));
        const float erfc_value = fg::fast_erfc(prod_x);
        const float prod_d_product_2 = d_product_2 * (prod + 0.5f * erfc_value);
        prod_d_product_2_v[k] = prod_d_product_2;
        sum_d_up_bias_v[part][k] += prod_d_product_2;
      }
      fg::store_vector<8>(prod_d_product_2_ptr + (j0 * prod_d_product_2_stride0 + j1), prod_d_product_2_v);
    }
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_up_bias_by_group_ptr + (group * n + at), sum_d_up_bias_v[part]);
  }
}

// mlp, backward between 1                                     declared in ops/mlps.py
//   sum_d_up_bias = sum[groups](sum_d_up_bias_by_group)
//   d_up_bias = sum_d_up_bias
// column: 32 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(1024)
void mlp_backward_between_1_bf16_d_up_bias(const float* sum_d_up_bias_by_group_ptr,  // [GROUPS, D3]
                                           bf16* __restrict__ d_up_bias_ptr,         // [D3]
                                           int m, int n, int sum_d_up_bias_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 32 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 32 + threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  float sum_d_up_bias = 0;
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const int sum_d_up_bias_by_group_at = j0 + j1 * sum_d_up_bias_by_group_stride1;
      const float sum_d_up_bias_by_group = fg::load(sum_d_up_bias_by_group_ptr + sum_d_up_bias_by_group_at);
      sum_d_up_bias += sum_d_up_bias_by_group;
    }
  }
  sum_d_up_bias = fg::column_sum<32>(sum_d_up_bias);

  if (inside && threadIdx.y == 0) {
    fg::store(d_up_bias_ptr + j0, sum_d_up_bias);
  }
}
