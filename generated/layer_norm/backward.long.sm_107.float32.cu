// fusegen emit layer_norm --which backward --dtype float32 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_107
#include "fusegen.cuh"

// layer_norm, backward                                        declared in ops/norms.py
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   ratio = 1 / float32(D1)
//   prod_d_out_weight = d_out * weight
//   diff_input_mean = input - mean
//   d_deviation = sum[d1](prod_d_out_weight * diff_input_mean)
//   d_total = sum[d1](prod_d_out_weight)
//   prod = d_deviation * rstd^3 * ratio
//   prod_d_total = d_total * (rstd * ratio)
//   d_input = prod_d_out_weight * rstd - diff_input_mean * prod - prod_d_total
//   sum_d_weight = sum[d0](d_out * (diff_input_mean * rstd))
//   sum_d_bias = sum[d0](d_out)
// rows: 4 blocks of 256 threads a row over D1, which stays in shared memory: read once; sum_d_weight, sum_d_bias added
//     up over the rows of a group, then over groups by a second kernel
extern "C" __global__ FUSEGEN_CLUSTER(4) __launch_bounds__(256, 1)
void layer_norm_backward_f32_d_input(const float* __restrict__ input_ptr,            // [D0, D1]
                                     const float* __restrict__ weight_ptr,           // [D1]
                                     const float* __restrict__ d_out_ptr,            // [D0, D1]
                                     const float* __restrict__ total_ptr,            // [D0]
                                     const float* __restrict__ deviation_ptr,        // [D0]
                                     float* __restrict__ d_input_ptr,                // [D0, D1]
                                     float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                     float* __restrict__ sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                     float eps, int64_t D1, int m, int n, int input_stride0, int d_out_stride0,
                                     int d_input_stride0) {
  // 4 blocks of 256 threads share a row.
  fg::Link<4> link;
  const int begin = int(fg::cluster_rank()) * 4096;
  const int thread = threadIdx.x;
  fg::Vec<float, 4> sum_d_weight_v[4] = {};
  fg::Vec<float, 4> sum_d_bias_v[4] = {};
  // All rows have these in common.
  using weight_rows = fg::Raw<float, 4>[4][256];
  weight_rows& weight_row = fg::dynamic_shared<weight_rows>();
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&weight_row[part][thread], weight_ptr + j1);
  }

  // The next row is read while the present one is worked on.
  float total_next;
  float deviation_next;
  using input_rows = fg::Raw<float, 4>[2][4][256];
  input_rows& input_row = fg::behind<input_rows>(weight_row);
  using d_out_rows = fg::Raw<float, 4>[2][4][256];
  d_out_rows& d_out_row = fg::behind<d_out_rows>(input_row);
  int turn = 1;
  int row = int(blockIdx.x) / 4;
  {
    const int next = row;
    const int j0 = next;
    total_next = fg::load(total_ptr + j0);
    deviation_next = fg::load(deviation_ptr + j0);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (256 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
      fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
    }
  }
  link.ready();  // all blocks of the cluster have begun
  for (; row < m; row += int(gridDim.x) / 4) {
    const int j0 = row;
    const float total = total_next;
    const float deviation = deviation_next;
    turn ^= 1;
    fg::await_loads();
    if (row + int(gridDim.x) / 4 < m) {
      const int next = row + int(gridDim.x) / 4;
      const int j0 = next;
      total_next = fg::load(total_ptr + j0);
      deviation_next = fg::load(deviation_ptr + j0);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int at = begin + 4 * (256 * part + threadIdx.x);
        const int j1 = at;
        fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
      }
    }
    const float mean = fg::divide_by_count(total, float(D1));
    const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);
    const float ratio = fg::divide_by_count(1.0f, float(D1));

    float d_deviation = 0;
    float d_total = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part][thread]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float prod_d_out_weight = d_out * weight;
        const float diff_input_mean = input - mean;
        d_deviation += prod_d_out_weight * diff_input_mean;
        d_total += prod_d_out_weight;
      }
    }
    fg::cluster_sum<256, 0>(link, d_deviation, d_total);
    const float prod = d_deviation * (rstd * rstd * rstd) * ratio;
    const float prod_d_total = d_total * (rstd * ratio);

#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (256 * part + threadIdx.x);
      const int j1 = at;
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part][thread]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      fg::Vec<float, 4> d_input_v;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float prod_d_out_weight = d_out * weight;
        const float diff_input_mean = input - mean;
        d_input_v[k] = prod_d_out_weight * rstd - diff_input_mean * prod - prod_d_total;
        sum_d_weight_v[part][k] += d_out * (diff_input_mean * rstd);
        sum_d_bias_v[part][k] += d_out;
      }
      fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
    }
    __syncthreads();
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x) / 4;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    fg::store_vector<4>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
    fg::store_vector<4>(sum_d_bias_by_group_ptr + (group * n + at), sum_d_bias_v[part]);
  }
}

// layer_norm, backward                                        declared in ops/norms.py
//   sum_d_weight = sum[groups](sum_d_weight_by_group)
//   sum_d_bias = sum[groups](sum_d_bias_by_group)
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// column: 64 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(256, 4)
void layer_norm_backward_f32_d_weight_and_1_more(const float* sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                                 const float* sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                                 float* __restrict__ d_weight_ptr,        // [D1]
                                                 float* __restrict__ d_bias_ptr,          // [D1]
                                                 int m, int n, int sum_d_weight_by_group_stride1,
                                                 int sum_d_bias_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 64 neighbouring results; its 8 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 2 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 2> sum_d_weight_v = {};
  fg::Vec<float, 2> sum_d_bias_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 8) {
      const int j1 = at;
      const int sum_d_weight_by_group_at = j0 + j1 * sum_d_weight_by_group_stride1;
      const auto sum_d_weight_by_group_v = fg::load_vector<2>(sum_d_weight_by_group_ptr + sum_d_weight_by_group_at);
      const int sum_d_bias_by_group_at = j0 + j1 * sum_d_bias_by_group_stride1;
      const auto sum_d_bias_by_group_v = fg::load_vector<2>(sum_d_bias_by_group_ptr + sum_d_bias_by_group_at);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float sum_d_weight_by_group = sum_d_weight_by_group_v[k];
        const float sum_d_bias_by_group = sum_d_bias_by_group_v[k];
        sum_d_weight_v[k] += sum_d_weight_by_group;
        sum_d_bias_v[k] += sum_d_bias_by_group;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<8>(sum_d_weight_v);
  sum_d_bias_v = fg::column_sum<8>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<2>(d_weight_ptr + j0, sum_d_weight_v);
    fg::store_vector<2>(d_bias_ptr + j0, sum_d_bias_v);
  }
}
