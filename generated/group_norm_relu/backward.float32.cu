// fusegen emit group_norm_relu --which backward --dtype float32 --shape input=8,64,56,56 --shape weight=64
//     --shape bias=64 --arg num_groups=32
#include "fusegen.cuh"

// group_norm_relu, backward                                   declared in ops/fused_norms.py
//   value = float32(D2 * D3 * D4)
//   rsqrt_value = rsqrt(deviation / value + eps)
//   ratio_value = 1 / value
//   prod = 0.5 * rsqrt_value^3 * ratio_value
//   diff_input = input - total / value
//   y = diff_input * rsqrt_value
//   result_ = y * weight + bias
//   below_result = result_ <= 0
//   prod_d_out_weight = d_out * weight
//   sum_deviation = sum[d2, d3, d4](where(below_result, 0, -(prod_d_out_weight * diff_input * prod)))
//   sum_total = sum[d2, d3, d4](where(below_result, 0, -(prod_d_out_weight * (rsqrt_value * ratio_value))))
//   prod_weight = weight * rsqrt_value
//   chosen = where(below_result, 0, d_out * prod_weight)
//   d_input = chosen + diff_input * (2 * sum_deviation) + sum_total
// rows: 4 blocks of 224 threads a row over D2, D3, D4, which stays in registers: read once
extern "C" __global__ FUSEGEN_CLUSTER(4) __launch_bounds__(224, 4)
void group_norm_relu_backward_f32_d_input(const float* __restrict__ input_ptr,      // [D0, D1, D2, D3, D4]
                                          const float* __restrict__ weight_ptr,     // [D1, D2]
                                          const float* __restrict__ bias_ptr,       // [D1, D2]
                                          const float* __restrict__ d_out_ptr,      // [D0, D1, D2, D3, D4]
                                          const float* __restrict__ total_ptr,      // [D0, D1]
                                          const float* __restrict__ deviation_ptr,  // [D0, D1]
                                          float* __restrict__ d_input_ptr,          // [D0, D1, D2, D3, D4]
                                          float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n,
                                          fg::Divisor n1, fg::Divisor n3, int input_stride0, int input_stride1,
                                          int input_stride2, int weight_stride1, int bias_stride1, int d_out_stride0,
                                          int d_out_stride1, int d_out_stride2, int total_stride0,
                                          int deviation_stride0, int d_input_stride0, int d_input_stride1,
                                          int d_input_stride2) {
  // 4 blocks of 224 threads share a row.
  fg::Link<4> link;
  const int begin = int(fg::cluster_rank()) * 1792;
  const int row = int(blockIdx.x) / 4;
  const int end = n;
  fg::Raw<float, 4> input_row[2];
  fg::Raw<float, 4> d_out_row[2];
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float total = fg::load(total_ptr + j0 * total_stride0 + j1);
  const float deviation = fg::load(deviation_ptr + j0 * deviation_stride0 + j1);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at < end) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = rest;
      const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
      input_row[part] = fg::load_raw<4>(input_ptr + input_at);
      const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
      d_out_row[part] = fg::load_raw<4>(d_out_ptr + d_out_at);
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
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float diff_input = input - total / value;
      const float y = diff_input * rsqrt_value;
      const float result_ = y * weight + bias;
      const bool below_result = result_ <= 0.0f;
      const float prod_d_out_weight = d_out * weight;
      sum_deviation += below_result ? 0.0f : -(prod_d_out_weight * diff_input * prod);
      sum_total += below_result ? 0.0f : -(prod_d_out_weight * (rsqrt_value * ratio_value));
    }
  }
  fg::cluster_sum<224, 0>(link, sum_deviation, sum_total);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 4 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part]);
    fg::Vec<float, 4> d_input_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float diff_input = input - total / value;
      const float y = diff_input * rsqrt_value;
      const float result_ = y * weight + bias;
      const bool below_result = result_ <= 0.0f;
      const float prod_weight = weight * rsqrt_value;
      const float chosen = below_result ? 0.0f : d_out * prod_weight;
      d_input_v[k] = chosen + diff_input * (2.0f * sum_deviation) + sum_total;
    }
    const int d_input_at = j0 * d_input_stride0 + j1 * d_input_stride1 + j2 * d_input_stride2 + j3;
    fg::store_vector<4>(d_input_ptr + d_input_at, d_input_v);
  }
}

// group_norm_relu, backward                                   declared in ops/fused_norms.py
//   value = float32(D2 * D3 * D4)
//   diff_input = input - total / value
//   rsqrt_value = rsqrt(deviation / value + eps)
//   y = diff_input * rsqrt_value
//   result_ = y * weight + bias
//   below_result = result_ <= 0
//   sum_d_weight = sum[d0, d3, d4](where(below_result, 0, d_out * y))
//   sum_d_bias = sum[d0, d3, d4](where(below_result, 0, d_out))
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// row: a block a result, reduced over D0, D3, D4, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void group_norm_relu_backward_f32_d_weight_and_1_more(const float* __restrict__ input_ptr,      // [D0, D1, D2, D3, D4]
                                                      const float* __restrict__ weight_ptr,     // [D1, D2]
                                                      const float* __restrict__ bias_ptr,       // [D1, D2]
                                                      const float* __restrict__ d_out_ptr,      // [D0, D1, D2, D3, D4]
                                                      const float* __restrict__ total_ptr,      // [D0, D1]
                                                      const float* __restrict__ deviation_ptr,  // [D0, D1]
                                                      float* __restrict__ d_weight_ptr,         // [D1, D2]
                                                      float* __restrict__ d_bias_ptr,           // [D1, D2]
                                                      float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n,
                                                      fg::Divisor n1, fg::Divisor n3, int input_stride0,
                                                      int input_stride1, int input_stride2, int weight_stride0,
                                                      int bias_stride0, int d_out_stride0, int d_out_stride1,
                                                      int d_out_stride2, int total_stride2, int deviation_stride2,
                                                      int d_weight_stride0, int d_bias_stride0) {
  fg::wait_for_previous_kernel();
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float weight = fg::load(weight_ptr + j0 * weight_stride0 + j1);
  const float bias = fg::load(bias_ptr + j0 * bias_stride0 + j1);

  fg::Chains<float> sum_d_weight_chains;
  fg::Chains<float> sum_d_bias_chains;
  for (int at = 4 * threadIdx.x; at < n; at += 1024) {
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
    const auto input_v = fg::load_vector<4>(input_ptr + input_at);
    const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
    const auto d_out_v = fg::load_vector<4>(d_out_ptr + d_out_at);
    const float total = fg::load(total_ptr + j0 + j2 * total_stride2);
    const float deviation = fg::load(deviation_ptr + j0 + j2 * deviation_stride2);
    float sum_d_weight_part = 0;
    float sum_d_bias_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float value = float(D2 * D3 * D4);
      const float diff_input = input - total / value;
      const float rsqrt_value = rsqrtf(deviation / value + eps);
      const float y = diff_input * rsqrt_value;
      const float result_ = y * weight + bias;
      const bool below_result = result_ <= 0.0f;
      sum_d_weight_part += below_result ? 0.0f : d_out * y;
      sum_d_bias_part += below_result ? 0.0f : d_out;
    }
    sum_d_weight_chains.add(sum_d_weight_part);
    sum_d_bias_chains.add(sum_d_bias_part);
  }
  const float sum_d_weight = fg::block_sum<256>(sum_d_weight_chains.total());
  const float sum_d_bias = fg::block_sum<256>(sum_d_bias_chains.total());

  if (threadIdx.x == 0) {
    fg::store(d_weight_ptr + j0 * d_weight_stride0 + j1, sum_d_weight);
    fg::store(d_bias_ptr + j0 * d_bias_stride0 + j1, sum_d_bias);
  }
}
