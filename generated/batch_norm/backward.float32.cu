// fusegen emit batch_norm --which backward --dtype float32 --shape input=8,64,56,56 --shape weight=64 --shape bias=64
//     --arg running_mean=None --arg running_var=None
#include "fusegen.cuh"

// batch_norm, backward                                        declared in ops/channels.py
//   value = float32(D0 * D2 * D3)
//   mean = total / value
//   rstd = rsqrt(deviation / value + eps)
//   prod_weight_rstd = weight * rstd
//   ratio_value = 1 / value
//   diff_input_mean = input - mean
//   y = diff_input_mean * rstd
//   d_deviation = sum[d0, d2, d3](d_out * diff_input_mean)
//   d_total = sum[d0, d2, d3](d_out)
//   sum_d_weight = sum[d0, d2, d3](d_out * y)
//   sum_d_bias = sum[d0, d2, d3](d_out)
//   prod = d_deviation * weight * rstd^3 * ratio_value
//   prod_d_total = d_total * (prod_weight_rstd * ratio_value)
//   d_input = d_out * prod_weight_rstd - diff_input_mean * prod - prod_d_total
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// rows: 8 blocks of 224 threads a row over D0, D2, D3, which stays in shared memory: read once
extern "C" __global__ FUSEGEN_CLUSTER(8) __launch_bounds__(224, 6)
void batch_norm_backward_f32(const float* __restrict__ input_ptr,      // [D0, D1, D2, D3]
                             const float* __restrict__ weight_ptr,     // [D1]
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
  const float mean = fg::divide(total, value);
  const float rstd = rsqrtf(fg::divide(deviation, value) + eps);
  const float prod_weight_rstd = weight * rstd;
  const float ratio_value = fg::divide(1.0f, value);

  float d_deviation = 0;
  float d_total = 0;
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
      const float diff_input_mean = input - mean;
      const float y = diff_input_mean * rstd;
      d_deviation += d_out * diff_input_mean;
      d_total += d_out;
      sum_d_weight += d_out * y;
      sum_d_bias += d_out;
    }
  }
  fg::cluster_sum<224, 0>(link, d_deviation, d_total, sum_d_weight, sum_d_bias);
  const float prod = d_deviation * weight * (rstd * rstd * rstd) * ratio_value;
  const float prod_d_total = d_total * (prod_weight_rstd * ratio_value);

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
      const float diff_input_mean = input - mean;
      d_input_v[k] = d_out * prod_weight_rstd - diff_input_mean * prod - prod_d_total;
    }
    fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1 * d_input_stride1 + j2), d_input_v);
  }

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(d_weight_ptr + j0, sum_d_weight);
    fg::store(d_bias_ptr + j0, sum_d_bias);
  }
}
