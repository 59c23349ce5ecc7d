// fusegen emit residual_bias_group_norm_gelu --which backward --dtype bfloat16 --shape input=8,64,56,56
//     --shape bias=64 --shape residual=8,64,56,56 --shape weight=64 --arg num_groups=32
#include "fusegen.cuh"

// residual_bias_group_norm_gelu, backward: without a kernel
//   d_residual = d_input, the same tensor

// residual_bias_group_norm_gelu, backward                     declared in ops/fused_norms.py
//   value = float32(D2 * D3 * D4)
//   mean = total / value
//   rstd = rsqrt(deviation / value + eps)
//   power_rstd = rstd^3
//   ratio_value = 1 / value
//   prod_2 = 0.3989422804014327 * power_rstd * ratio_value
//   prod_3 = 0.25 * power_rstd * ratio_value
//   prod_rstd = 0.7978845608028654 * rstd
//   prod_5 = prod_rstd * ratio_value
//   prod_rstd_2 = 0.5 * rstd
//   prod_6 = prod_rstd_2 * ratio_value
//   total_2 = input + bias + residual
//   diff_total_2_mean = total_2 - mean
//   y = diff_total_2_mean * rstd
//   result_ = y * weight
//   prod_result = 0.5 * result_
//   prod_result_2 = -0.7071067811865476 * result_
//   exp_value = exp(-prod_result_2^2)
//   prod = prod_result * exp_value
//   prod_weight = weight * prod
//   erfc_value = erfc(prod_result_2)
//   prod_weight_erfc_value = weight * erfc_value
//   prod_4 = diff_total_2_mean * prod_weight_erfc_value * prod_3
//   d_deviation = sum[d2, d3, d4](-(d_out * (diff_total_2_mean * prod_weight * prod_2 + prod_4)))
//   d_total = sum[d2, d3, d4](-(d_out * (prod_weight * prod_5 + prod_weight_erfc_value * prod_6)))
//   prod_3_2 = prod_weight * prod_rstd
//   prod_rstd_3 = prod_weight_erfc_value * prod_rstd_2
//   prod_diff_total_2_mean = diff_total_2_mean * (2 * d_deviation)
//   sum = d_out * (prod_3_2 + prod_rstd_3) + prod_diff_total_2_mean
//   d_input = sum + d_total
//   prod_4_2 = y * prod * 0.7978845608028654
//   sum_d_bias = sum[d3, d4](d_input)
//   sum_d_weight = sum[d3, d4](d_out * (prod_4_2 + y * erfc_value * 0.5))
//   sum_d_bias_by_share = sum_d_bias
//   sum_d_weight_by_share = sum_d_weight
// rows: 2 blocks of 224 threads a row over D2, D3, D4, which stays in shared memory: read once; erfc_value, prod,
//     diff_total_2_mean kept between its traversals; leaves sum_d_bias_by_share, sum_d_weight_by_share, a number for
//     each run over D3, D4, which a second kernel adds up over rows
extern "C" __global__ FUSEGEN_CLUSTER(2) __launch_bounds__(224, 3)
void residual_bias_group_norm_gelu_backward_bf16_d_input(
    const bf16* __restrict__ input_ptr,             // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ bias_ptr,              // [D1, D2]
    const bf16* __restrict__ residual_ptr,          // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ weight_ptr,            // [D1, D2]
    const bf16* __restrict__ d_out_ptr,             // [D0, D1, D2, D3, D4]
    const float* __restrict__ total_ptr,            // [D0, D1]
    const float* __restrict__ deviation_ptr,        // [D0, D1]
    bf16* __restrict__ d_input_ptr,                 // [D0, D1, D2, D3, D4]
    float* __restrict__ sum_d_bias_by_share_ptr,    // [SHARES, D0, D1, D2]
    float* __restrict__ sum_d_weight_by_share_ptr,  // [SHARES, D0, D1, D2]
    float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n, fg::Divisor n1, fg::Divisor n3, int segment_size,
    int shares, int input_stride0, int input_stride1, int input_stride2, int bias_stride1, int residual_stride0,
    int residual_stride1, int residual_stride2, int weight_stride1, int d_out_stride0, int d_out_stride1,
    int d_out_stride2, int total_stride0, int deviation_stride0, int d_input_stride0, int d_input_stride1,
    int d_input_stride2) {
  // 2 blocks of 224 threads share a row.
  fg::Link<2> link;
  const int begin = int(fg::cluster_rank()) * 3584;
  const int thread = threadIdx.x;
  FUSEGEN_SHARED(float, sum_d_bias_parts, [448]);
  FUSEGEN_SHARED(float, sum_d_weight_parts, [448]);
  const int row = int(blockIdx.x) / 2;
  const int end = n;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][224]);
  using residual_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(residual_element, residual_row, [2][224]);
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][224]);
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float total = fg::load(total_ptr + j0 * total_stride0 + j1);
  const float deviation = fg::load(deviation_ptr + j0 * deviation_stride0 + j1);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at < end) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = rest;
      const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
      fg::load_async(&input_row[part][thread], input_ptr + input_at);
      const int residual_at = j0 * residual_stride0 + j1 * residual_stride1 + j2 * residual_stride2 + j3;
      fg::load_async(&residual_row[part][thread], residual_ptr + residual_at);
      const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
      fg::load_async(&d_out_row[part][thread], d_out_ptr + d_out_at);
    }
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D2 * D3 * D4);
  const float mean = fg::divide(total, value);
  const float rstd = rsqrtf(fg::divide(deviation, value) + eps);
  const float power_rstd = rstd * rstd * rstd;
  const float ratio_value = fg::divide(1.0f, value);
  const float prod_2 = 0.3989422804014327f * power_rstd * ratio_value;
  const float prod_3 = 0.25f * power_rstd * ratio_value;
  const float prod_rstd = 0.7978845608028654f * rstd;
  const float prod_5 = prod_rstd * ratio_value;
  const float prod_rstd_2 = 0.5f * rstd;
  const float prod_6 = prod_rstd_2 * ratio_value;

  float d_deviation = 0;
  float d_total = 0;
  fg::Vec<float, 8> diff_total_2_mean_row[2];
  fg::Vec<float, 8> prod_row[2];
  fg::Vec<float, 8> erfc_value_row[2];
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float total_2 = input + bias + residual;
      const float diff_total_2_mean = total_2 - mean;
      diff_total_2_mean_row[part][k] = diff_total_2_mean;
      const float y = diff_total_2_mean * rstd;
      const float result_ = y * weight;
      const float prod_result = 0.5f * result_;
      const float prod_result_2 = -0.7071067811865476f * result_;
      const float exp_value = fg::fast_exp_below(-(prod_result_2 * prod_result_2));
      const float prod = prod_result * exp_value;
      prod_row[part][k] = prod;
      const float prod_weight = weight * prod;
      const float erfc_value = fg::fast_erfc(prod_result_2);
      erfc_value_row[part][k] = erfc_value;
      const float prod_weight_erfc_value = weight * erfc_value;
      const float prod_4 = diff_total_2_mean * prod_weight_erfc_value * prod_3;
      d_deviation -= (d_out * (diff_total_2_mean * prod_weight * prod_2 + prod_4));
      d_total -= (d_out * (prod_weight * prod_5 + prod_weight_erfc_value * prod_6));
    }
  }
  fg::cluster_sum<224, 0>(link, d_deviation, d_total);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    fg::Vec<float, 8> d_input_v;
    float sum_d_bias_part = 0;
    float sum_d_weight_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float d_out = d_out_v[k];
      const float diff_total_2_mean = diff_total_2_mean_row[part][k];
      const float y = diff_total_2_mean * rstd;
      const float prod = prod_row[part][k];
      const float prod_weight = weight * prod;
      const float erfc_value = erfc_value_row[part][k];
      const float prod_weight_erfc_value = weight * erfc_value;
      const float prod_3_2 = prod_weight * prod_rstd;
      const float prod_rstd_3 = prod_weight_erfc_value * prod_rstd_2;
      const float prod_diff_total_2_mean = diff_total_2_mean * (2.0f * d_deviation);
      const float sum = d_out * (prod_3_2 + prod_rstd_3) + prod_diff_total_2_mean;
      const float d_input = sum + d_total;
      const float prod_4_2 = y * prod * 0.7978845608028654f;
      d_input_v[k] = d_input;
      sum_d_bias_part += d_input;
      sum_d_weight_part += d_out * (prod_4_2 + y * erfc_value * 0.5f);
    }
    const int d_input_at = j0 * d_input_stride0 + j1 * d_input_stride1 + j2 * d_input_stride2 + j3;
    fg::store_vector<8>(d_input_ptr + d_input_at, d_input_v);
    sum_d_bias_parts[224 * part + threadIdx.x] = sum_d_bias_part;
    sum_d_weight_parts[224 * part + threadIdx.x] = sum_d_weight_part;
  }

  // 32 threads at a time add up a segment of the row, each block its share of it.
  __syncthreads();
  const int segments = n / segment_size;
  const int until = fg::at_most(begin + 3584, n);
  for (int turn = begin / segment_size; turn * segment_size < until; turn += 7) {
    const int segment = turn + threadIdx.x / 32;
    const auto part = fg::part_of_segment<8>(segment, segment_size, begin, until);
    const float sum_d_bias = fg::segment_sum<32>(sum_d_bias_parts, part);
    const float sum_d_weight = fg::segment_sum<32>(sum_d_weight_parts, part);
    if (threadIdx.x % 32 == 0 && part.any()) {
      const int at = row * segments + segment;
      const int share = fg::cluster_rank() - int(segment * segment_size / 3584);
      const int next = (segment + 1) * segment_size > until ? share + 1 : shares;  // the last block: others have none
      fg::store_share(sum_d_bias_by_share_ptr + at, m * segments, share, next, sum_d_bias);
      fg::store_share(sum_d_weight_by_share_ptr + at, m * segments, share, next, sum_d_weight);
    }
  }
}

// residual_bias_group_norm_gelu, backward                     declared in ops/fused_norms.py
//   sum_d_bias = sum[shares, d0](sum_d_bias_by_share)
//   sum_d_weight = sum[shares, d0](sum_d_weight_by_share)
//   d_bias = sum_d_bias
//   d_weight = sum_d_weight
// column: 64 neighbouring results a block, reduced over D0, SHARES
extern "C" __global__ __launch_bounds__(256, 4)
void residual_bias_group_norm_gelu_backward_bf16_d_bias_and_1_more(
    const float* sum_d_bias_by_share_ptr,    // [SHARES, D0, D1, D2]
    const float* sum_d_weight_by_share_ptr,  // [SHARES, D0, D1, D2]
    bf16* __restrict__ d_bias_ptr,           // [D1, D2]
    bf16* __restrict__ d_weight_ptr,         // [D1, D2]
    int m, int n, int sum_d_bias_by_share_stride1, int sum_d_weight_by_share_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 64 neighbouring results; its 16 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 4 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 4> sum_d_bias_v = {};
  fg::Vec<float, 4> sum_d_weight_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 16) {
      const int j1 = at;
      const int sum_d_bias_by_share_at = j0 + j1 * sum_d_bias_by_share_stride1;
      const auto sum_d_bias_by_share_v = fg::load_vector<4>(sum_d_bias_by_share_ptr + sum_d_bias_by_share_at);
      const int sum_d_weight_by_share_at = j0 + j1 * sum_d_weight_by_share_stride1;
      const auto sum_d_weight_by_share_v = fg::load_vector<4>(sum_d_weight_by_share_ptr + sum_d_weight_by_share_at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum_d_bias_by_share = sum_d_bias_by_share_v[k];
        const float sum_d_weight_by_share = sum_d_weight_by_share_v[k];
        sum_d_bias_v[k] += sum_d_bias_by_share;
        sum_d_weight_v[k] += sum_d_weight_by_share;
      }
    }
  }
  sum_d_bias_v = fg::column_sum<16, 16>(sum_d_bias_v);
  sum_d_weight_v = fg::column_sum<16, 16>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(d_bias_ptr + j0, sum_d_bias_v);
    fg::store_vector<4>(d_weight_ptr + j0, sum_d_weight_v);
  }
}
