// fusegen emit residual_bias_group_norm --which backward --dtype bfloat16 --shape input=8,64,56,56 --shape bias=64
//     --shape residual=8,64,56,56 --shape weight=64 --arg num_groups=32
#include "fusegen.cuh"

// residual_bias_group_norm, backward                          declared in ops/fused_norms.py
//   value = float32(D2 * D3 * D4)
//   rsqrt_value = rsqrt(deviation / value + eps)
//   ratio_value = 1 / value
//   prod = 0.5 * rsqrt_value^3 * ratio_value
//   prod_d_out_weight = d_out * weight
//   total_2 = input + bias + residual
//   diff_total_2 = total_2 - total / value
//   sum_deviation = sum[d2, d3, d4](-(prod_d_out_weight * diff_total_2 * prod))
//   sum_total = sum[d2, d3, d4](-(prod_d_out_weight * (rsqrt_value * ratio_value)))
//   prod_weight = weight * rsqrt_value
//   sum = d_out * prod_weight + diff_total_2 * (2 * sum_deviation)
//   d_input = sum + sum_total
//   d_residual = d_input
// rows: 2 blocks of 224 threads a row over D2, D3, D4, which stays in registers: read once
extern "C" __global__ FUSEGEN_CLUSTER(2) __launch_bounds__(224, 4)
void residual_bias_group_norm_backward_bf16_d_input_and_3_more(
    const bf16* __restrict__ input_ptr,       // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ bias_ptr,        // [D1, D2]
    const bf16* __restrict__ residual_ptr,    // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ weight_ptr,      // [D1, D2]
    const bf16* __restrict__ d_out_ptr,       // [D0, D1, D2, D3, D4]
    const float* __restrict__ total_ptr,      // [D0, D1]
    const float* __restrict__ deviation_ptr,  // [D0, D1]
    bf16* __restrict__ d_input_ptr,           // [D0, D1, D2, D3, D4]
    bf16* __restrict__ d_residual_ptr,        // [D0, D1, D2, D3, D4]
    float* __restrict__ sum_deviation_ptr,    // [D0, D1]
    float* __restrict__ sum_total_ptr,        // [D0, D1]
    float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n, fg::Divisor n1, fg::Divisor n3, int input_stride0,
    int input_stride1, int input_stride2, int bias_stride1, int residual_stride0, int residual_stride1,
    int residual_stride2, int weight_stride1, int d_out_stride0, int d_out_stride1, int d_out_stride2,
    int total_stride0, int deviation_stride0, int d_input_stride0, int d_input_stride1, int d_input_stride2,
    int d_residual_stride0, int d_residual_stride1, int d_residual_stride2, int sum_deviation_stride0,
    int sum_total_stride0) {
  // 2 blocks of 224 threads share a row.
  fg::Link<2> link;
  const int begin = int(fg::cluster_rank()) * 3584;
  const int row = int(blockIdx.x) / 2;
  const int end = n;
  fg::Raw<bf16, 8> input_row[2];
  fg::Raw<bf16, 8> residual_row[2];
  fg::Raw<bf16, 8> d_out_row[2];
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
      input_row[part] = fg::load_raw<8>(input_ptr + input_at);
      const int residual_at = j0 * residual_stride0 + j1 * residual_stride1 + j2 * residual_stride2 + j3;
      residual_row[part] = fg::load_raw<8>(residual_ptr + residual_at);
      const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
      d_out_row[part] = fg::load_raw<8>(d_out_ptr + d_out_at);
    }
  }
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D2 * D3 * D4);
  const float rsqrt_value = rsqrtf(deviation / value + eps);
  const float ratio_value = 1.0f / value;
  const float prod = 0.5f * (rsqrt_value * rsqrt_value * rsqrt_value) * ratio_value;

  float sum_deviation = 0;
  float sum_total = 0;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part]);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    const auto residual_v = fg::widen(residual_row[part]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float prod_d_out_weight = d_out * weight;
      const float total_2 = input + bias + residual;
      const float diff_total_2 = total_2 - total / value;
      sum_deviation += -(prod_d_out_weight * diff_total_2 * prod);
      sum_total += -(prod_d_out_weight * (rsqrt_value * ratio_value));
    }
  }
  fg::cluster_sum<224, 0>(link, sum_deviation, sum_total);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part]);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    const auto residual_v = fg::widen(residual_row[part]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part]);
    fg::Vec<float, 8> d_input_v;
    fg::Vec<float, 8> d_residual_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float total_2 = input + bias + residual;
      const float diff_total_2 = total_2 - total / value;
      const float prod_weight = weight * rsqrt_value;
      const float sum = d_out * prod_weight + diff_total_2 * (2.0f * sum_deviation);
      const float d_input = sum + sum_total;
      d_input_v[k] = d_input;
      d_residual_v[k] = d_input;
    }
    const int d_input_at = j0 * d_input_stride0 + j1 * d_input_stride1 + j2 * d_input_stride2 + j3;
    fg::store_vector<8>(d_input_ptr + d_input_at, d_input_v);
    const int d_residual_at = j0 * d_residual_stride0 + j1 * d_residual_stride1 + j2 * d_residual_stride2 + j3;
    fg::store_vector<8>(d_residual_ptr + d_residual_at, d_residual_v);
  }

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(sum_deviation_ptr + j0 * sum_deviation_stride0 + j1, sum_deviation);
    fg::store(sum_total_ptr + j0 * sum_total_stride0 + j1, sum_total);
  }
}

// residual_bias_group_norm, backward                          declared in ops/fused_norms.py
//   value = float32(D2 * D3 * D4)
//   rsqrt_value = rsqrt(deviation / value + eps)
//   prod_weight = weight * rsqrt_value
//   total_2 = input + bias + residual
//   diff_total_2 = total_2 - total / value
//   sum = d_out * prod_weight + sum_deviation * 2 * diff_total_2
//   d_input = sum + sum_total
//   y = diff_total_2 * rsqrt_value
//   sum_d_bias = sum[d0, d3, d4](d_input)
//   sum_d_weight = sum[d0, d3, d4](d_out * y)
//   d_bias = sum_d_bias
//   d_weight = sum_d_weight
// row: a block a result, reduced over D0, D3, D4, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void residual_bias_group_norm_backward_bf16_d_bias_and_1_more(
    const bf16* __restrict__ input_ptr,       // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ bias_ptr,        // [D1, D2]
    const bf16* __restrict__ residual_ptr,    // [D0, D1, D2, D3, D4]
    const bf16* __restrict__ weight_ptr,      // [D1, D2]
    const bf16* __restrict__ d_out_ptr,       // [D0, D1, D2, D3, D4]
    const float* __restrict__ total_ptr,      // [D0, D1]
    const float* __restrict__ deviation_ptr,  // [D0, D1]
    const float* sum_deviation_ptr,           // [D0, D1]
    const float* sum_total_ptr,               // [D0, D1]
    bf16* __restrict__ d_bias_ptr,            // [D1, D2]
    bf16* __restrict__ d_weight_ptr,          // [D1, D2]
    float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n, fg::Divisor n1, fg::Divisor n3, int input_stride0,
    int input_stride1, int input_stride2, int bias_stride0, int residual_stride0, int residual_stride1,
    int residual_stride2, int weight_stride0, int d_out_stride0, int d_out_stride1, int d_out_stride2,
    int total_stride2, int deviation_stride2, int sum_deviation_stride2, int sum_total_stride2, int d_bias_stride0,
    int d_weight_stride0) {
  fg::wait_for_previous_kernel();
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float bias = fg::load(bias_ptr + j0 * bias_stride0 + j1);
  const float weight = fg::load(weight_ptr + j0 * weight_stride0 + j1);

  fg::Chains<float> sum_d_bias_chains;
  fg::Chains<float> sum_d_weight_chains;
  for (int at = 8 * threadIdx.x; at < n; at += 2048) {
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
    const auto input_v = fg::load_vector<8>(input_ptr + input_at);
    const int residual_at = j0 * residual_stride0 + j1 * residual_stride1 + j2 * residual_stride2 + j3;
    const auto residual_v = fg::load_vector<8>(residual_ptr + residual_at);
    const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
    const auto d_out_v = fg::load_vector<8>(d_out_ptr + d_out_at);
    const float total = fg::load(total_ptr + j0 + j2 * total_stride2);
    const float deviation = fg::load(deviation_ptr + j0 + j2 * deviation_stride2);
    const float sum_deviation = fg::load(sum_deviation_ptr + j0 + j2 * sum_deviation_stride2);
    const float sum_total = fg::load(sum_total_ptr + j0 + j2 * sum_total_stride2);
    float sum_d_bias_part = 0;
    float sum_d_weight_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float value = float(D2 * D3 * D4);
      const float rsqrt_value = rsqrtf(deviation / value + eps);
      const float prod_weight = weight * rsqrt_value;
      const float total_2 = input + bias + residual;
      const float diff_total_2 = total_2 - total / value;
      const float sum = d_out * prod_weight + sum_deviation * 2.0f * diff_total_2;
      const float d_input = sum + sum_total;
      const float y = diff_total_2 * rsqrt_value;
      sum_d_bias_part += d_input;
      sum_d_weight_part += d_out * y;
    }
    sum_d_bias_chains.add(sum_d_bias_part);
    sum_d_weight_chains.add(sum_d_weight_part);
  }
  const float sum_d_bias = fg::block_sum<256>(sum_d_bias_chains.total());
  const float sum_d_weight = fg::block_sum<256>(sum_d_weight_chains.total());

  if (threadIdx.x == 0) {
    fg::store(d_bias_ptr + j0 * d_bias_stride0 + j1, sum_d_bias);
    fg::store(d_weight_ptr + j0 * d_weight_stride0 + j1, sum_d_weight);
  }
}
