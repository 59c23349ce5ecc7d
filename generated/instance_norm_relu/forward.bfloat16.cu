// fusegen emit instance_norm_relu --which forward --dtype bfloat16 --shape input=8,64,56,56 --shape weight=64
//     --shape bias=64
#include "fusegen.cuh"

// instance_norm_relu, forward                                 declared in ops/fused_norms.py
//   value = float32(D2 * D3)
//   total = sum[d2, d3](input)
//   deviation = squared_deviation[d2, d3](input)
//   y = (input - total / value) * rsqrt(deviation / value + eps)
//   result_ = y * weight + bias
//   out = where(result_ <= 0, 0, result_)
// rows: 128 threads a row over D2, D3, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(128, 10)
void instance_norm_relu_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1, D2, D3]
                                     const bf16* __restrict__ weight_ptr,  // [D1]
                                     const bf16* __restrict__ bias_ptr,    // [D1]
                                     bf16* __restrict__ out_ptr,           // [D0, D1, D2, D3]
                                     float eps, int64_t D2, int64_t D3, int m, int n, fg::Divisor n1,
                                     int input_stride0, int input_stride1, int out_stride0, int out_stride1) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  const int end = n;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][128]);
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  const float weight = fg::load(weight_ptr + j1);
  const float bias = fg::load(bias_ptr + j1);
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (128 * part + threadIdx.x);
    if (at < end) {
      const int j2 = at;
      fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1 * input_stride1 + j2);
    }
  }
  fg::await_loads();
  const float value = float(D2 * D3);

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (128 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      total += input;
    }
  }
  fg::row_sum<128, 1, 0>(total);
  const float deviation_mean = fg::divide_by_count(total, float(n));
  float deviation = 0;
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (128 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float away = input - deviation_mean;
      deviation += away * away;
    }
  }
  fg::row_sum<128, 1, 1>(deviation);

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (128 * part + threadIdx.x);
    if (at >= end) break;
    const int j2 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float y = (input - total / value) * rsqrtf(deviation / value + eps);
      const float result_ = y * weight + bias;
      out_v[k] = result_ <= 0.0f ? 0.0f : result_;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1 * out_stride1 + j2), out_v);
  }
}
