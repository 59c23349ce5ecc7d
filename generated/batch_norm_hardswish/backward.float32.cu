// fusegen emit batch_norm_hardswish --which backward --dtype float32 --shape input=8,64,56,56 --shape weight=64
//     --shape bias=64 --arg running_mean=None --arg running_var=None
#include "fusegen.cuh"

// batch_norm_hardswish, backward                              declared in ops/fused_norms.py
//   value = float32(D0 * D2 * D3)
//   rsqrt_value = rsqrt(deviation / value + eps)
//   prod_weight = 0.5 * weight
//   power = rsqrt_value^3
//   ratio_value = 1 / value
//   prod = prod_weight * power * ratio_value
//   prod_weight_2 = weight * rsqrt_value
//   prod_prod_weight_2 = prod_weight_2 * ratio_value
//   diff_input = input - total / value
//   y = diff_input * rsqrt_value
//   sum_bias = y * weight + bias
//   below_result = sum_bias <= -3
//   below_result_2 = sum_bias < 3
//   chosen = where(below_result_2, 0, -(d_out * diff_input * prod))
//   prod_d_out = d_out * 0.16666666666666666
//   result_ = diff_input * (rsqrt_value * weight) + bias
//   ratio_value_2 = diff_input * result_ * prod
//   sum_result = result_ + 3
//   prod_2 = diff_input * sum_result
//   minus = -(prod_d_out * (ratio_value_2 + prod_2 * prod))
//   chosen_2 = where(below_result_2, 0, -(d_out * prod_prod_weight_2))
//   sum = result_ * prod_prod_weight_2 + sum_result * prod_prod_weight_2
//   minus_2 = -(prod_d_out * sum)
//   prod_4 = prod_2 * rsqrt_value
//   prod_5 = prod_d_out * (result_ * diff_input * rsqrt_value + prod_4)
//   sum_2 = where(below_result_2, 0, d_out * y) + where(below_result_2, prod_5, 0)
//   sum_2_2 = 3 + 2 * bias + diff_input * (2 * weight * rsqrt_value)
//   chosen_3 = where(below_result_2, prod_d_out * sum_2_2, 0)
//   sum_deviation = sum[d0, d2, d3](where(below_result, 0, chosen + where(below_result_2, minus, 0)))
//   sum_total = sum[d0, d2, d3](where(below_result, 0, chosen_2 + where(below_result_2, minus_2, 0)))
//   sum_d_weight = sum[d0, d2, d3](where(below_result, 0, sum_2))
//   sum_d_bias = sum[d0, d2, d3](where(below_result, 0, where(below_result_2, 0, d_out) + chosen_3))
//   prod_2_2 = result_ * prod_weight_2
//   prod_3 = sum_result * prod_weight_2
//   chosen_4 = where(below_result_2, prod_d_out * (prod_2_2 + prod_3), 0)
//   sum_3 = where(below_result_2, 0, d_out * prod_weight_2) + chosen_4
//   sum_4 = where(below_result, 0, sum_3) + diff_input * (2 * sum_deviation)
//   d_input = sum_4 + sum_total
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// rows: 8 blocks of 224 threads a row over D0, D2, D3, which stays in shared memory: read once
extern "C" __global__ FUSEGEN_CLUSTER(8) __launch_bounds__(224, 6)
void batch_norm_hardswish_backward_f32(const float* __restrict__ input_ptr,      // [D0, D1, D2, D3]
                                       const float* __restrict__ weight_ptr,     // [D1]
                                       const float* __restrict__ bias_ptr,       // [D1]
                                       const float* __restrict__ d_out_ptr,      // [D0, D1, D2, D3]
                                       const float* __restrict__ total_ptr,      // [D1]
                                       const float* __restrict__ deviation_ptr,  // [D1]
                                       float* __restrict__ d_input_ptr,          // [D0, D1, D2, D3]
                                       float* __restrict__ d_weight_ptr,         // [D1]
                                       float* __restrict__ d_bias_ptr,           // [D1]
                                       float eps, int64_t D0, int64_t D2, int64_t D3, int m, int n, fg::Divisor n2,
                                       int input_stride0, int input_stride1, int d_out_stride0, int d_out_stride1,
                                       int d_input_stride0, int d_input_stride1) {
  // 8 blocks of 224 threads share a row.
  fg::Link<8> link;
  const int begin = int(fg::cluster_rank()) * 3584;
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x) / 8;
  const int end = n;
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [4][224]);
  using d_out_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [4][224]);
  const int j0 = row;
  const float weight = fg::load(weight_ptr + j0);
  const float bias = fg::load(bias_ptr + j0);
  const float total = fg::load(total_ptr + j0);
  const float deviation = fg::load(deviation_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at < end) {
      int rest = at;
      const int j2 = fg::take(rest, n2);
      const int j1 = rest;
      fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1 * input_stride1 + j2);
      fg::load_async(&d_out_row[part][thread], d_out_ptr + j0 * d_out_stride0 + j1 * d_out_stride1 + j2);
    }
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D0 * D2 * D3);
  const float rsqrt_value = rsqrtf(deviation / value + eps);
  const float prod_weight = 0.5f * weight;
  const float power = rsqrt_value * rsqrt_value * rsqrt_value;
  const float ratio_value = 1.0f / value;
  const float prod = prod_weight * power * ratio_value;
  const float prod_weight_2 = weight * rsqrt_value;
  const float prod_prod_weight_2 = prod_weight_2 * ratio_value;

  float sum_deviation = 0;
  float sum_total = 0;
  float sum_d_weight = 0;
  float sum_d_bias = 0;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float diff_input = input - total / value;
      const float y = diff_input * rsqrt_value;
      const float sum_bias = y * weight + bias;
      const bool below_result = sum_bias <= -3.0f;
      const bool below_result_2 = sum_bias < 3.0f;
      const float chosen = below_result_2 ? 0.0f : -(d_out * diff_input * prod);
      const float prod_d_out = d_out * 0.16666666666666666f;
      const float result_ = diff_input * (rsqrt_value * weight) + bias;
      const float ratio_value_2 = diff_input * result_ * prod;
      const float sum_result = result_ + 3.0f;
      const float prod_2 = diff_input * sum_result;
      const float minus = -(prod_d_out * (ratio_value_2 + prod_2 * prod));
      const float chosen_2 = below_result_2 ? 0.0f : -(d_out * prod_prod_weight_2);
      const float sum = result_ * prod_prod_weight_2 + sum_result * prod_prod_weight_2;
      const float minus_2 = -(prod_d_out * sum);
      const float prod_4 = prod_2 * rsqrt_value;
      const float prod_5 = prod_d_out * (result_ * diff_input * rsqrt_value + prod_4);
      const float sum_2 = (below_result_2 ? 0.0f : d_out * y) + (below_result_2 ? prod_5 : 0.0f);
      const float sum_2_2 = 3.0f + 2.0f * bias + diff_input * (2.0f * weight * rsqrt_value);
      const float chosen_3 = below_result_2 ? prod_d_out * sum_2_2 : 0.0f;
      sum_deviation += below_result ? 0.0f : chosen + (below_result_2 ? minus : 0.0f);
      sum_total += below_result ? 0.0f : chosen_2 + (below_result_2 ? minus_2 : 0.0f);
      sum_d_weight += below_result ? 0.0f : sum_2;
      sum_d_bias += below_result ? 0.0f : (below_result_2 ? 0.0f : d_out) + chosen_3;
    }
  }
  fg::cluster_sum<224, 0>(link, sum_deviation, sum_total, sum_d_weight, sum_d_bias);

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    fg::Vec<float, 4> d_input_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float diff_input = input - total / value;
      const float y = diff_input * rsqrt_value;
      const float sum_bias = y * weight + bias;
      const bool below_result = sum_bias <= -3.0f;
      const bool below_result_2 = sum_bias < 3.0f;
      const float prod_d_out = d_out * 0.16666666666666666f;
      const float result_ = diff_input * (rsqrt_value * weight) + bias;
      const float sum_result = result_ + 3.0f;
      const float prod_2_2 = result_ * prod_weight_2;
      const float prod_3 = sum_result * prod_weight_2;
      const float chosen_4 = below_result_2 ? prod_d_out * (prod_2_2 + prod_3) : 0.0f;
      const float sum_3 = (below_result_2 ? 0.0f : d_out * prod_weight_2) + chosen_4;
      const float sum_4 = (below_result ? 0.0f : sum_3) + diff_input * (2.0f * sum_deviation);
      d_input_v[k] = sum_4 + sum_total;
    }
    fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1 * d_input_stride1 + j2), d_input_v);
  }

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(d_weight_ptr + j0, sum_d_weight);
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
