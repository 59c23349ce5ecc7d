// fusegen emit layer_norm_gelu --which backward --dtype bfloat16 --shape input=512,3072 --shape weight=3072
//     --shape bias=3072 --arg normalized_shape=(3072,)
#include "fusegen.cuh"

// layer_norm_gelu, backward                                   declared in ops/fused_norms.py
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   power_rstd = rstd^3
//   ratio = 1 / float32(D1)
//   prod_2 = 0.3989422804014327 * power_rstd * ratio
//   prod_3 = 0.25 * power_rstd * ratio
//   prod_rstd_2 = 0.7978845608028654 * rstd
//   prod_4 = prod_rstd_2 * ratio
//   prod_rstd_3 = 0.5 * rstd
//   prod_5 = prod_rstd_3 * ratio
//   diff_input_mean = input - mean
//   prod_rstd = diff_input_mean * rstd
//   result_ = prod_rstd * weight + bias
//   prod_result = 0.5 * result_
//   prod_result_2 = -0.7071067811865476 * result_
//   exp_value = exp(-prod_result_2^2)
//   prod = prod_result * exp_value
//   prod_weight = weight * prod
//   ratio_2 = diff_input_mean * prod_weight * prod_2
//   erfc_value = erfc(prod_result_2)
//   prod_weight_erfc_value = weight * erfc_value
//   prod_d_out = d_out * (ratio_2 + diff_input_mean * prod_weight_erfc_value * prod_3)
//   sum = prod_weight * prod_4 + prod_weight_erfc_value * prod_5
//   d_deviation = sum[d1](-prod_d_out)
//   d_total = sum[d1](-(d_out * sum))
//   prod_4_2 = prod_rstd * prod * 0.7978845608028654
//   prod_erfc_value = erfc_value * 0.5
//   sum_2 = result_ * exp_value * 0.3989422804014327 + prod_erfc_value
//   prod_3_2 = prod_weight * prod_rstd_2
//   prod_rstd_2_2 = prod_weight_erfc_value * prod_rstd_3
//   prod_diff_input_mean = diff_input_mean * (2 * d_deviation)
//   sum_3 = d_out * (prod_3_2 + prod_rstd_2_2) + prod_diff_input_mean
//   d_input = sum_3 + d_total
//   sum_d_weight = sum[d0](d_out * (prod_4_2 + prod_rstd * prod_erfc_value))
//   sum_d_bias = sum[d0](d_out * sum_2)
// rows: 192 threads a row over D1, which stays in shared memory: read once; erfc_value, exp_value kept between its
//     traversals; sum_d_weight, sum_d_bias added up over the rows of a group, then over groups by a second kernel
extern "C" __global__ __launch_bounds__(192, 2)
void layer_norm_gelu_backward_bf16_d_input(const bf16* __restrict__ input_ptr,             // [D0, D1]
                                           const bf16* __restrict__ weight_ptr,            // [D1]
                                           const bf16* __restrict__ bias_ptr,              // [D1]
                                           const bf16* __restrict__ d_out_ptr,             // [D0, D1]
                                           const float* __restrict__ total_ptr,            // [D0]
                                           const float* __restrict__ deviation_ptr,        // [D0]
                                           bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                                           float* __restrict__ sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                           float* __restrict__ sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                           float eps, int64_t D1, int m, int n, int input_stride0, int d_out_stride0,
                                           int d_input_stride0) {
  const int thread = threadIdx.x;
  fg::Vec<float, 8> sum_d_weight_v[2] = {};
  fg::Vec<float, 8> sum_d_bias_v[2] = {};
  // All rows have these in common.
  fg::Raw<bf16, 8> weight_row[2];
  fg::Raw<bf16, 8> bias_row[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    weight_row[part] = fg::load_raw<8>(weight_ptr + j1);
    bias_row[part] = fg::load_raw<8>(bias_ptr + j1);
  }

  // The next row is read while the present one is worked on.
  float total_next;
  float deviation_next;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][2][192]);
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][2][192]);
  int turn = 1;
  int row = int(blockIdx.x);
  {
    const int next = row;
    const int j0 = next;
    total_next = fg::load(total_ptr + j0);
    deviation_next = fg::load(deviation_ptr + j0);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
      fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
    }
  }
  for (; row < m; row += int(gridDim.x)) {
    const int j0 = row;
    const float total = total_next;
    const float deviation = deviation_next;
    turn ^= 1;
    fg::await_loads();
    if (row + int(gridDim.x) < m) {
      const int next = row + int(gridDim.x);
      const int j0 = next;
      total_next = fg::load(total_ptr + j0);
      deviation_next = fg::load(deviation_ptr + j0);
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int at = 8 * (192 * part + threadIdx.x);
        const int j1 = at;
        fg::load_async(&input_row[turn ^ 1][part][thread], input_ptr + j0 * input_stride0 + j1);
        fg::load_async(&d_out_row[turn ^ 1][part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
      }
    }
    const float mean = fg::divide_by_count(total, float(D1));
    const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);
    const float power_rstd = rstd * rstd * rstd;
    const float ratio = fg::divide_by_count(1.0f, float(D1));
    const float prod_2 = 0.3989422804014327f * power_rstd * ratio;
    const float prod_3 = 0.25f * power_rstd * ratio;
    const float prod_rstd_2 = 0.7978845608028654f * rstd;
    const float prod_4 = prod_rstd_2 * ratio;
    const float prod_rstd_3 = 0.5f * rstd;
    const float prod_5 = prod_rstd_3 * ratio;

    float d_deviation = 0;
    float d_total = 0;
    fg::Vec<float, 8> exp_value_row[2];
    fg::Vec<float, 8> erfc_value_row[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto bias_v = fg::widen(bias_row[part]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float bias = bias_v[k];
        const float d_out = d_out_v[k];
        const float diff_input_mean = input - mean;
        const float prod_rstd = diff_input_mean * rstd;
        const float result_ = prod_rstd * weight + bias;
        const float prod_result = 0.5f * result_;
        const float prod_result_2 = -0.7071067811865476f * result_;
        const float exp_value = fg::fast_exp_below(-(prod_result_2 * prod_result_2));
        exp_value_row[part][k] = exp_value;
        const float prod = prod_result * exp_value;
        const float prod_weight = weight * prod;
        const float ratio_2 = diff_input_mean * prod_weight * prod_2;
        const float erfc_value = fg::fast_erfc(prod_result_2);
        erfc_value_row[part][k] = erfc_value;
        const float prod_weight_erfc_value = weight * erfc_value;
        const float prod_d_out = d_out * (ratio_2 + diff_input_mean * prod_weight_erfc_value * prod_3);
        const float sum = prod_weight * prod_4 + prod_weight_erfc_value * prod_5;
        d_deviation -= prod_d_out;
        d_total -= (d_out * sum);
      }
    }
    fg::row_sum<192, 1, 0>(d_deviation, d_total);

#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int at = 8 * (192 * part + threadIdx.x);
      const int j1 = at;
      const auto input_v = fg::widen(input_row[turn][part][thread]);
      const auto weight_v = fg::widen(weight_row[part]);
      const auto bias_v = fg::widen(bias_row[part]);
      const auto d_out_v = fg::widen(d_out_row[turn][part][thread]);
      fg::Vec<float, 8> d_input_v;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        const float weight = weight_v[k];
        const float bias = bias_v[k];
        const float d_out = d_out_v[k];
        const float diff_input_mean = input - mean;
        const float prod_rstd = diff_input_mean * rstd;
        const float result_ = prod_rstd * weight + bias;
        const float prod_result = 0.5f * result_;
        const float exp_value = exp_value_row[part][k];
        const float prod = prod_result * exp_value;
        const float prod_weight = weight * prod;
        const float erfc_value = erfc_value_row[part][k];
        const float prod_weight_erfc_value = weight * erfc_value;
        const float prod_4_2 = prod_rstd * prod * 0.7978845608028654f;
        const float prod_erfc_value = erfc_value * 0.5f;
        const float sum_2 = result_ * exp_value * 0.3989422804014327f + prod_erfc_value;
        const float prod_3_2 = prod_weight * prod_rstd_2;
        const float prod_rstd_2_2 = prod_weight_erfc_value * prod_rstd_3;
        const float prod_diff_input_mean = diff_input_mean * (2.0f * d_deviation);
        const float sum_3 = d_out * (prod_3_2 + prod_rstd_2_2) + prod_diff_input_mean;
        d_input_v[k] = sum_3 + d_total;
        sum_d_weight_v[part][k] += d_out * (prod_4_2 + prod_rstd * prod_erfc_value);
        sum_d_bias_v[part][k] += d_out * sum_2;
      }
      fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
    }
    __syncthreads();
  }

  // What this group of rows adds to each position.
  const int group = int(blockIdx.x);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    fg::store_vector<8>(sum_d_weight_by_group_ptr + (group * n + at), sum_d_weight_v[part]);
    fg::store_vector<8>(sum_d_bias_by_group_ptr + (group * n + at), sum_d_bias_v[part]);
  }
}

// layer_norm_gelu, backward                                   declared in ops/fused_norms.py
//   sum_d_weight = sum[groups](sum_d_weight_by_group)
//   sum_d_bias = sum[groups](sum_d_bias_by_group)
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// column: 32 neighbouring results a block, reduced over GROUPS
extern "C" __global__ __launch_bounds__(1024)
void layer_norm_gelu_backward_bf16_d_weight_and_1_more(const float* sum_d_weight_by_group_ptr,  // [GROUPS, D1]
                                                       const float* sum_d_bias_by_group_ptr,    // [GROUPS, D1]
                                                       bf16* __restrict__ d_weight_ptr,         // [D1]
                                                       bf16* __restrict__ d_bias_ptr,           // [D1]
                                                       int m, int n, int sum_d_weight_by_group_stride1,
                                                       int sum_d_bias_by_group_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 32 neighbouring results; its 32 rows of threads share the elements.
  const int result = int(blockIdx.x) * 32 + threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  float sum_d_weight = 0;
  float sum_d_bias = 0;
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 32) {
      const int j1 = at;
      const float sum_d_weight_by_group = fg::load(sum_d_weight_by_group_ptr + j0 + j1 * sum_d_weight_by_group_stride1);
      const float sum_d_bias_by_group = fg::load(sum_d_bias_by_group_ptr + j0 + j1 * sum_d_bias_by_group_stride1);
      sum_d_weight += sum_d_weight_by_group;
      sum_d_bias += sum_d_bias_by_group;
    }
  }
  sum_d_weight = fg::column_sum<32>(sum_d_weight);
  sum_d_bias = fg::column_sum<32>(sum_d_bias);

  if (inside && threadIdx.y == 0) {
    fg::store(d_weight_ptr + j0, sum_d_weight);
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
