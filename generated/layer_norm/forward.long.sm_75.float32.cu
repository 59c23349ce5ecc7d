// fusegen emit layer_norm --which forward --dtype float32 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_75
#include "fusegen.cuh"

// layer_norm, forward                                         declared in ops/norms.py
//   total = sum[d1](input)
//   deviation = squared_deviation[d1](input)
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   out = (input - mean) * rstd * weight + bias
// rows: 256 threads a row over D1, which stays in registers: read once
extern "C" __global__ __launch_bounds__(256, 2)
void layer_norm_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                            const float* __restrict__ weight_ptr,  // [D1]
                            const float* __restrict__ bias_ptr,    // [D1]
                            float* __restrict__ out_ptr,           // [D0, D1]
                            float eps, int64_t D1, int m, int n, int input_stride0, int out_stride0) {
  const int row = int(blockIdx.x);
  fg::Raw<float, 4> input_row[16];
  const int j0 = row;
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    input_row[part] = fg::load_raw<4>(input_ptr + j0 * input_stride0 + j1);
  }

  float total = 0;
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const auto input_v = fg::widen(input_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      total += input;
    }
  }
  fg::row_sum<256, 1, 0>(total);
  const float deviation_mean = fg::divide_by_count(total, float(n));
  float deviation = 0;
  float deviation_rest = 0;
#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const auto input_v = fg::widen(input_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float away = input - deviation_mean;
      deviation += away * away;
      deviation_rest += away;
    }
  }
  fg::row_sum<256, 1, 1>(deviation, deviation_rest);
  deviation -= deviation_rest * fg::divide_by_count(deviation_rest, float(n));
  total += deviation_rest;
  const float mean = fg::divide_by_count(total, float(D1));
  const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);

#pragma unroll
  for (int part = 0; part < 16; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part]);
    const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
    const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
    fg::Vec<float, 4> out_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float weight = weight_v[k];
      const float bias = bias_v[k];
      out_v[k] = (input - mean) * rstd * weight + bias;
    }
    fg::store_vector<4>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
