// fusegen emit layer_norm --which backward --dtype bfloat16 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_86
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
// rows: 512 threads a row over D1, which stays in registers: read once; sum_d_weight, sum_d_bias added up over the rows
//     of a group, then over groups by a second kernel
extern "C" __global__ __launch_bounds__(512, 1)
void layer_norm_backward_bf16_d_input(const bf16* __restrict__ input_ptr,             // [D0, D1]
                                      const bf16* __restrict__ weight_ptr,            // [D1]
                                      const bf16* __restrict__ d_out_ptr,             // [D0, D1]
                                      const float* __restrict__ total_ptr,            // [D0]
                                      const float* __restrict__ deviation_ptr,        // [D0]
                                      bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                                      float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                      float* __restrict__ sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                      float eps, int64_t D1, int m, int n, int input_stride0, int d_out_stride0,
                                      int d_input_stride0) {
  fg::Vec<float, 8> sum_d_weight_v[4] = {};
  fg::Vec<float, 8> sum_d_bias_v[4] = {};
  // All rows have these in common.
  fg::Raw<bf16, 8> weight_row[4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (512 * part + threadIdx.x);
    const int j1 = at;
    weight_row[part] = fg::load_raw<8>(weight_ptr + j1);
  }

  int row = int(blockIdx.x);
  for (; row < m; row += int(gridDim.x)) {
    fg::Raw<bf16, 8> input_row[4];
    fg::Raw<bf16, 8> d_out_row[4];
    const int j0 = row;
    const float total = fg::load(total_ptr + j0);
    const float deviation = fg::load(deviation_ptr + j0);
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = 8 * (512 * part + threadIdx.x);
      const int j1 = at;
      input_row[part] = fg::load_raw<8>(input_ptr + j0 * input_stride0 + j1);
      d_out_row[part] = fg::load_raw<8>(d_out_ptr + j0 * d_out_stride0 + j1);
    }
    const float mean = fg::divide_by_count(total, float(D1));
    const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);
    const float ratio = fg::divide_by_count(1.0f, float(D1));

    float d_deviation = 0;
    float d_total = 0;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto d_out_v = fg::widen(d_out_row[part]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float prod_d_out_weight = d_out * weight;
        const float diff_input_mean = input - mean;
        d_deviation += prod_d_out_weight * diff_input_mean;
        d_total += prod_d_out_weight;
      }
    }
    fg::row_sum<512, 1, 0>(d_deviation, d_total);
    const float prod = d_deviation * (rstd * rstd * rstd) * ratio;
    const float prod_d_total = d_total * (rstd * ratio);

#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = 8 * (512 * part + threadIdx.x);
      const int j1 = at;
      const auto input_v = fg::widen(input_row[part]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto d_out_v = fg::widen(d_out_row[part]);
      fg::Vec<float, 8> d_input_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float d_out = d_out_v[k];
        const float prod_d_out_weight = d_out * weight;
        const float diff_input_mean = input - mean;
        d_input_v[k] = prod_d_out_weight * rstd - diff_input_mean * prod - prod_d_total;
        sum_d_weight_v[part][k] += d_out * (diff_input_mean * rstd);
        sum_d_bias_v[part][k] += d_out;
      }
      fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
    }
    __syncthreads();
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (512 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
    fg::store_vector<8>(sum_d_bias_by_group_ptr + (group * n + at), sum_d_bias_v[part]);
  }
}

// layer_norm, backward                                        declared in ops/norms.py
//   sum_d_weight = sum[groups](sum_d_weight_by_group)
//   sum_d_bias = sum[groups](sum_d_bias_by_group)
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// column: 64 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(512)
void layer_norm_backward_bf16_d_weight_and_1_more(const float* sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                                  const float* sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                                  bf16* __restrict__ d_weight_ptr,         // [D1]
                                                  bf16* __restrict__ d_bias_ptr,           // [D1]
                                                  int m, int n, int sum_d_weight_by_group_stride1,
                                                  int sum_d_bias_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 64 neighbouring results; its 16 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 2 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 2> sum_d_weight_v = {};
  fg::Vec<float, 2> sum_d_bias_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 16) {
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
  sum_d_weight_v = fg::column_sum<16>(sum_d_weight_v);
  sum_d_bias_v = fg::column_sum<16>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<2>(d_weight_ptr + j0, sum_d_weight_v);
    fg::store_vector<2>(d_bias_ptr + j0, sum_d_bias_v);
  }
}
