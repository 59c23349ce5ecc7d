// fusegen emit group_norm --which backward --dtype bfloat16 --shape input=8,64,56,56 --shape weight=64
//     --shape bias=64 --arg num_groups=32
#include "fusegen.cuh"

// group_norm, backward                                        declared in ops/channels.py
//   value = float32(D2 * D3 * D4)
//   mean = total / value
//   rstd = rsqrt(deviation / value + eps)
//   ratio_value = 1 / value
//   prod_d_out_weight = d_out * weight
//   diff_input_mean = input - mean
//   d_deviation = sum[d2, d3, d4](prod_d_out_weight * diff_input_mean)
//   d_total = sum[d2, d3, d4](prod_d_out_weight)
//   prod = d_deviation * rstd^3 * ratio_value
//   prod_d_total = d_total * (rstd * ratio_value)
//   y = diff_input_mean * rstd
//   d_input = prod_d_out_weight * rstd - diff_input_mean * prod - prod_d_total
//   sum_d_weight = sum[d3, d4](d_out * y)
//   sum_d_bias = sum[d3, d4](d_out)
//   sum_d_weight_by_share = sum_d_weight
//   sum_d_bias_by_share = sum_d_bias
// rows: 224 threads a row over D2, D3, D4, which stays in shared memory: read once; prod_d_out_weight kept between its
//     traversals; leaves sum_d_weight_by_share, sum_d_bias_by_share, a number for each run over D3, D4, which a second
//     kernel adds up over rows
extern "C" __global__ __launch_bounds__(224, 3)
void group_norm_backward_bf16_d_input(const bf16* __restrict__ input_ptr,             // [D0, D1, D2, D3, D4]
                                      const bf16* __restrict__ weight_ptr,            // [D1, D2]
                                      const bf16* __restrict__ d_out_ptr,             // [D0, D1, D2, D3, D4]
                                      const float* __restrict__ total_ptr,            // [D0, D1]
                                      const float* __restrict__ deviation_ptr,        // [D0, D1]
                                      bf16* __restrict__ d_input_ptr,                 // [D0, D1, D2, D3, D4]
                                      float* __restrict__ sum_d_weight_by_share_ptr,  // [SHARES, D0, D1, D2]
                                      float* __restrict__ sum_d_bias_by_share_ptr,    // [SHARES, D0, D1, D2]
                                      float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n, fg::Divisor n1,
                                      fg::Divisor n3, int segment_size, int input_stride0, int input_stride1,
                                      int input_stride2, int weight_stride1, int d_out_stride0, int d_out_stride1,
                                      int d_out_stride2, int total_stride0, int deviation_stride0,
                                      int d_input_stride0, int d_input_stride1, int d_input_stride2) {
  const int thread = threadIdx.x;
  FUSEGEN_SHARED(float, sum_d_weight_parts, [896]);
  FUSEGEN_SHARED(float, sum_d_bias_parts, [896]);
  const int row = int(blockIdx.x);
  const int end = n;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][224]);
  using d_out_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [4][224]);
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float total = fg::load(total_ptr + j0 * total_stride0 + j1);
  const float deviation = fg::load(deviation_ptr + j0 * deviation_stride0 + j1);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (224 * part + threadIdx.x);
    if (at < end) {
      int rest = at;
      const int j3 = fg::take(rest, n3);
      const int j2 = rest;
      const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
      fg::load_async(&input_row[part][thread], input_ptr + input_at);
      const int d_out_at = j0 * d_out_stride0 + j1 * d_out_stride1 + j2 * d_out_stride2 + j3;
      fg::load_async(&d_out_row[part][thread], d_out_ptr + d_out_at);
    }
  }
  fg::await_loads();
  const float value = float(D2 * D3 * D4);
  const float mean = fg::divide(total, value);
  const float rstd = rsqrtf(fg::divide(deviation, value) + eps);
  const float ratio_value = fg::divide(1.0f, value);

  float d_deviation = 0;
  float d_total = 0;
  fg::Vec<float, 8> prod_d_out_weight_row[4];
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float prod_d_out_weight = d_out * weight;
      prod_d_out_weight_row[part][k] = prod_d_out_weight;
      const float diff_input_mean = input - mean;
      d_deviation += prod_d_out_weight * diff_input_mean;
      d_total += prod_d_out_weight;
    }
  }
  fg::row_sum<224, 1, 0>(d_deviation, d_total);
  const float prod = d_deviation * (rstd * rstd * rstd) * ratio_value;
  const float prod_d_total = d_total * (rstd * ratio_value);

#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    fg::Vec<float, 8> d_input_v;
    float sum_d_weight_part = 0;
    float sum_d_bias_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float d_out = d_out_v[k];
      const float prod_d_out_weight = prod_d_out_weight_row[part][k];
      const float diff_input_mean = input - mean;
      const float y = diff_input_mean * rstd;
      d_input_v[k] = prod_d_out_weight * rstd - diff_input_mean * prod - prod_d_total;
      sum_d_weight_part += d_out * y;
      sum_d_bias_part += d_out;
    }
    const int d_input_at = j0 * d_input_stride0 + j1 * d_input_stride1 + j2 * d_input_stride2 + j3;
    fg::store_vector<8>(d_input_ptr + d_input_at, d_input_v);
    sum_d_weight_parts[224 * part + threadIdx.x] = sum_d_weight_part;
    sum_d_bias_parts[224 * part + threadIdx.x] = sum_d_bias_part;
  }

  // 32 threads at a time add up a segment of the row.
  __syncthreads();
  const int segments = n / segment_size;
  for (int turn = 0; turn < segments; turn += 7) {
    const int segment = turn + threadIdx.x / 32;
    const auto part = fg::part_of_segment<8>(segment, segment_size, int(0), n);
    const float sum_d_weight = fg::segment_sum<32>(sum_d_weight_parts, part);
    const float sum_d_bias = fg::segment_sum<32>(sum_d_bias_parts, part);
    if (threadIdx.x % 32 == 0 && part.any()) {
      const int at = row * segments + segment;
      sum_d_weight_by_share_ptr[at] = sum_d_weight;
      sum_d_bias_by_share_ptr[at] = sum_d_bias;
    }
  }
}

// group_norm, backward                                        declared in ops/channels.py
//   sum_d_weight = sum[shares, d0](sum_d_weight_by_share)
//   sum_d_bias = sum[shares, d0](sum_d_bias_by_share)
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// column: 64 neighbouring results a block, reduced over D0, SHARES
extern "C" __global__ __launch_bounds__(256, 4)
void group_norm_backward_bf16_d_weight_and_1_more(const float* sum_d_weight_by_share_ptr,  // [SHARES, D0, D1, D2]
                                                  const float* sum_d_bias_by_share_ptr,    // [SHARES, D0, D1, D2]
                                                  bf16* __restrict__ d_weight_ptr,         // [D1, D2]
                                                  bf16* __restrict__ d_bias_ptr,           // [D1, D2]
                                                  int m, int n, int sum_d_weight_by_share_stride1,
                                                  int sum_d_bias_by_share_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 64 neighbouring results; its 16 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 4 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 4> sum_d_weight_v = {};
  fg::Vec<float, 4> sum_d_bias_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 16) {
      const int j1 = at;
      const int sum_d_weight_by_share_at = j0 + j1 * sum_d_weight_by_share_stride1;
      const auto sum_d_weight_by_share_v = fg::load_vector<4>(sum_d_weight_by_share_ptr + sum_d_weight_by_share_at);
      const int sum_d_bias_by_share_at = j0 + j1 * sum_d_bias_by_share_stride1;
      const auto sum_d_bias_by_share_v = fg::load_vector<4>(sum_d_bias_by_share_ptr + sum_d_bias_by_share_at);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum_d_weight_by_share = sum_d_weight_by_share_v[k];
        const float sum_d_bias_by_share = sum_d_bias_by_share_v[k];
        sum_d_weight_v[k] += sum_d_weight_by_share;
        sum_d_bias_v[k] += sum_d_bias_by_share;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<16, 16>(sum_d_weight_v);
  sum_d_bias_v = fg::column_sum<16, 16>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<4>(d_weight_ptr + j0, sum_d_weight_v);
    fg::store_vector<4>(d_bias_ptr + j0, sum_d_bias_v);
  }
}
