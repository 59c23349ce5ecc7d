// fusegen emit group_norm --which forward --dtype float32 --shape input=8,64,56,56 --shape weight=64 --shape bias=64
//     --arg num_groups=32
#include "fusegen.cuh"

// group_norm, forward                                         declared in ops/channels.py
//   value = float32(D2 * D3 * D4)
//   total = sum[d2, d3, d4](input)
//   deviation = squared_deviation[d2, d3, d4](input)
//   mean = total / value
//   rstd = rsqrt(deviation / value + eps)
//   y = (input - mean) * rstd
//   out = y * weight + bias
// rows: 224 threads a row over D2, D3, D4, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(224, 6)
void group_norm_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1, D2, D3, D4]
                            const float* __restrict__ weight_ptr,  // [D1, D2]
                            const float* __restrict__ bias_ptr,    // [D1, D2]
                            float* __restrict__ out_ptr,           // [D0, D1, D2, D3, D4]
                            float eps, int64_t D2, int64_t D3, int64_t D4, int m, int n, fg::Divisor n1,
                            fg::Divisor n3, int input_stride0, int input_stride1, int input_stride2,
                            int weight_stride1, int bias_stride1, int out_stride0, int out_stride1, int out_stride2) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [7][224]);
  int rest = row;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const int at = 4 * (224 * part + threadIdx.x);
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const int input_at = j0 * input_stride0 + j1 * input_stride1 + j2 * input_stride2 + j3;
    fg::load_async(&input_row[part][thread], input_ptr + input_at);
  }
  fg::await_loads();
  const float value = float(D2 * D3 * D4);

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      total += input;
    }
  }
  fg::row_sum<224, 1, 0>(total);
  const float deviation_mean = fg::divide_by_count(total, float(n));
  float deviation = 0;
  float deviation_rest = 0;
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float away = input - deviation_mean;
      deviation += away * away;
      deviation_rest += away;
    }
  }
  fg::row_sum<224, 1, 1>(deviation, deviation_rest);
  deviation -= deviation_rest * fg::divide_by_count(deviation_rest, float(n));
  total += deviation_rest;
  const float mean = fg::divide(total, value);
  const float rstd = rsqrtf(fg::divide(deviation, value) + eps);

#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const int at = 4 * (224 * part + threadIdx.x);
    int rest = at;
    const int j3 = fg::take(rest, n3);
    const int j2 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const float weight = fg::load(weight_ptr + j1 * weight_stride1 + j2);
    const float bias = fg::load(bias_ptr + j1 * bias_stride1 + j2);
    fg::Vec<float, 4> out_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float y = (input - mean) * rstd;
      out_v[k] = y * weight + bias;
    }
    fg::store_vector<4>(out_ptr + (j0 * out_stride0 + j1 * out_stride1 + j2 * out_stride2 + j3), out_v);
  }
}
