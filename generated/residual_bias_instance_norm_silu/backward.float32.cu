// fusegen emit residual_bias_instance_norm_silu --which backward --dtype float32 --shape input=8,64,56,56
//     --shape bias=64 --shape residual=8,64,56,56 --shape weight=64
#include "fusegen.cuh"

// residual_bias_instance_norm_silu, backward: without a kernel
//   d_residual = d_input, the same tensor

// residual_bias_instance_norm_silu, backward                  declared in ops/fused_norms.py
//   value = float32(D2 * D3)
//   rsqrt_value = rsqrt(deviation / value + eps)
//   power_weight = weight^2
//   ratio_value = 1 / value
//   prod = 0.5 * power_weight * rsqrt_value^4 * ratio_value
//   power_2 = rsqrt_value^2
//   prod_4 = power_weight * power_2
//   prod_weight_rsqrt_value = weight * rsqrt_value
//   total_2 = input + bias + residual
//   diff_total_2 = total_2 - total / value
//   power = diff_total_2^2
//   result_ = diff_total_2 * (rsqrt_value * weight)
//   sigmoid_result = sigmoid(result_)
//   diff = 1 - sigmoid_result
//   prod_diff = power * sigmoid_result * diff
//   prod_2 = diff_total_2 * sigmoid_result
//   prod_3 = prod_2 * (0.5 * weight * rsqrt_value^3 * ratio_value)
//   sum = prod_diff * prod + prod_3
//   prod_diff_2 = prod_2 * diff
//   prod_sigmoid_result = sigmoid_result * (prod_weight_rsqrt_value * ratio_value)
//   prod_5 = prod_diff * (weight * power_2)
//   y = diff_total_2 * rsqrt_value
//   sum_deviation = sum[d2, d3](-(d_out * sum))
//   sum_total = sum[d2, d3](-(d_out * (prod_diff_2 * (prod_4 * ratio_value) + prod_sigmoid_result)))
//   sum_d_weight = sum[d2, d3](d_out * (prod_5 + y * sigmoid_result))
//   prod_3_2 = prod_diff_2 * prod_4
//   prod_4_2 = sigmoid_result * prod_weight_rsqrt_value
//   sum_2 = d_out * (prod_3_2 + prod_4_2) + diff_total_2 * (2 * sum_deviation)
//   d_input = sum_2 + sum_total
//   sum_d_bias = sum[d2, d3](d_input)
//   sum_d_bias_by_row = sum_d_bias
//   sum_d_weight_by_row = sum_d_weight
// rows: 2 blocks of 224 threads a row over D2, D3, which stays in shared memory: read once; leaves sum_d_bias_by_row,
//     sum_d_weight_by_row, which a second kernel adds up over rows
extern "C" __global__ FUSEGEN_CLUSTER(2) __launch_bounds__(224, 6)
void residual_bias_instance_norm_silu_backward_f32_d_input_and_2_more(
    const float* __restrict__ input_ptr,          // [D0, D1, D2, D3]
    const float* __restrict__ bias_ptr,           // [D1]
    const float* __restrict__ residual_ptr,       // [D0, D1, D2, D3]
    const float* __restrict__ weight_ptr,         // [D1]
    const float* __restrict__ d_out_ptr,          // [D0, D1, D2, D3]
    const float* __restrict__ total_ptr,          // [D0, D1]
    const float* __restrict__ deviation_ptr,      // [D0, D1]
    float* __restrict__ d_input_ptr,              // [D0, D1, D2, D3]
    float* __restrict__ sum_d_bias_by_row_ptr,    // [D0, D1]
    float* __restrict__ sum_d_weight_by_row_ptr,  // [D0, D1]
    float eps, int64_t D2, int64_t D3, int m, int n, fg::Divisor n1, int input_stride0, int input_stride1,
    int residual_stride0, int residual_stride1, int d_out_stride0, int d_out_stride1, int total_stride0,
    int deviation_stride0, int d_input_stride0, int d_input_stride1, int sum_d_bias_by_row_stride0,
    int sum_d_weight_by_row_stride0) {
  // 2 blocks of 224 threads share a row.
  fg::Link<2> link;
  const int begin = int(fg::cluster_rank()) * 1792;
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x) / 2;
  const int end = n;
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [2][224]);
  using residual_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(residual_element, residual_row, [2][224]);
  using d_out_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [2][224]);
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float bias = fg::load(bias_ptr + j1);
  const float weight = fg::load(weight_ptr + j1);
  const float total = fg::load(total_ptr + j0 * total_stride0 + j1);
  const float deviation = fg::load(deviation_ptr + j0 * deviation_stride0 + j1);
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at < end) {
      const int j2 = at;
      fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1 * input_stride1 + j2);
      const int residual_at = j0 * residual_stride0 + j1 * residual_stride1 + j2;
      fg::load_async(&residual_row[part][thread], residual_ptr + residual_at);
      fg::load_async(&d_out_row[part][thread], d_out_ptr + j0 * d_out_stride0 + j1 * d_out_stride1 + j2);
    }
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D2 * D3);
  const float rsqrt_value = rsqrtf(deviation / value + eps);
  const float power_weight = weight * weight;
  const float ratio_value = 1.0f / value;
  const float prod = 0.5f * power_weight * fg::powi<4>(rsqrt_value) * ratio_value;
  const float power_2 = rsqrt_value * rsqrt_value;
  const float prod_4 = power_weight * power_2;
  const float prod_weight_rsqrt_value = weight * rsqrt_value;

  float sum_deviation = 0;
  float sum_total = 0;
  float sum_d_weight = 0;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float total_2 = input + bias + residual;
      const float diff_total_2 = total_2 - total / value;
      const float power = diff_total_2 * diff_total_2;
      const float result_ = diff_total_2 * (rsqrt_value * weight);
      const float sigmoid_result = fg::sigmoid(result_);
      const float diff = 1.0f - sigmoid_result;
      const float prod_diff = power * sigmoid_result * diff;
      const float prod_2 = diff_total_2 * sigmoid_result;
      const float prod_3 = prod_2 * (0.5f * weight * (rsqrt_value * rsqrt_value * rsqrt_value) * ratio_value);
      const float sum = prod_diff * prod + prod_3;
      const float prod_diff_2 = prod_2 * diff;
      const float prod_sigmoid_result = sigmoid_result * (prod_weight_rsqrt_value * ratio_value);
      const float prod_5 = prod_diff * (weight * power_2);
      const float y = diff_total_2 * rsqrt_value;
      sum_deviation += -(d_out * sum);
      sum_total += -(d_out * (prod_diff_2 * (prod_4 * ratio_value) + prod_sigmoid_result));
      sum_d_weight += d_out * (prod_5 + y * sigmoid_result);
    }
  }
  fg::cluster_sum<224, 0>(link, sum_deviation, sum_total, sum_d_weight);

  float sum_d_bias = 0;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    const int j2 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    fg::Vec<float, 4> d_input_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float d_out = d_out_v[k];
      const float total_2 = input + bias + residual;
      const float diff_total_2 = total_2 - total / value;
      const float result_ = diff_total_2 * (rsqrt_value * weight);
      const float sigmoid_result = fg::sigmoid(result_);
      const float diff = 1.0f - sigmoid_result;
      const float prod_2 = diff_total_2 * sigmoid_result;
      const float prod_diff_2 = prod_2 * diff;
      const float prod_3_2 = prod_diff_2 * prod_4;
      const float prod_4_2 = sigmoid_result * prod_weight_rsqrt_value;
      const float sum_2 = d_out * (prod_3_2 + prod_4_2) + diff_total_2 * (2.0f * sum_deviation);
      const float d_input = sum_2 + sum_total;
      d_input_v[k] = d_input;
      sum_d_bias += d_input;
    }
    fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1 * d_input_stride1 + j2), d_input_v);
  }
  fg::cluster_sum<224, 1>(link, sum_d_bias);

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(sum_d_bias_by_row_ptr + j0 * sum_d_bias_by_row_stride0 + j1, sum_d_bias);
    fg::store(sum_d_weight_by_row_ptr + j0 * sum_d_weight_by_row_stride0 + j1, sum_d_weight);
  }
}

// residual_bias_instance_norm_silu, backward                  declared in ops/fused_norms.py
//   sum_d_bias = sum[d0](sum_d_bias_by_row)
//   sum_d_weight = sum[d0](sum_d_weight_by_row)
//   d_bias = sum_d_bias
//   d_weight = sum_d_weight
// column: 64 neighbouring results a block, reduced over D0
extern "C" __global__ __launch_bounds__(256, 4)
void residual_bias_instance_norm_silu_backward_f32_d_bias_and_1_more(const float* sum_d_bias_by_row_ptr,    // [D0, D1]
                                                                     const float* sum_d_weight_by_row_ptr,  // [D0, D1]
                                                                     float* __restrict__ d_bias_ptr,        // [D1]
                                                                     float* __restrict__ d_weight_ptr,      // [D1]
                                                                     int m, int n, int sum_d_bias_by_row_stride1,
                                                                     int sum_d_weight_by_row_stride1) {
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
      const auto sum_d_bias_by_row_v = fg::load_vector<4>(sum_d_bias_by_row_ptr + j0 + j1 * sum_d_bias_by_row_stride1);
      const int sum_d_weight_by_row_at = j0 + j1 * sum_d_weight_by_row_stride1;
      const auto sum_d_weight_by_row_v = fg::load_vector<4>(sum_d_weight_by_row_ptr + sum_d_weight_by_row_at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum_d_bias_by_row_value = sum_d_bias_by_row_v[k];
        const float sum_d_weight_by_row_value = sum_d_weight_by_row_v[k];
        sum_d_bias_v[k] += sum_d_bias_by_row_value;
        sum_d_weight_v[k] += sum_d_weight_by_row_value;
      }
    }
  }
  sum_d_bias_v = fg::column_sum<16, 16>(sum_d_bias_v);
  sum_d_weight_v = fg::column_sum<16, 16>(sum_d_weight_v);

  if (inside && threadIdx.y == 0) {
    for (int k = 0; k < 4; ++k) {
      const float sum_d_bias = sum_d_bias_v[k];
      const float sum_d_weight = sum_d_weight_v[k];
      fg::store(d_bias_ptr + j0 + k, sum_d_bias);
      fg::store(d_weight_ptr + j0 + k, sum_d_weight);
    }
  }
}
