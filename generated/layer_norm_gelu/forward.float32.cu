// fusegen emit layer_norm_gelu --which forward --dtype float32 --shape input=512,3072 --shape weight=3072
//     --shape bias=3072 --arg normalized_shape=(3072,)
#include "fusegen.cuh"

// layer_norm_gelu, forward                                    declared in ops/fused_norms.py
//   total = sum[d1](input)
//   deviation = squared_deviation[d1](input)
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   result_ = (input - mean) * rstd * weight + bias
//   out = 0.5 * result_ * erfc(-0.7071067811865476 * result_)
// rows: 192 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(192, 7)
void layer_norm_gelu_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                                 const float* __restrict__ weight_ptr,  // [D1]
                                 const float* __restrict__ bias_ptr,    // [D1]
                                 float* __restrict__ out_ptr,           // [D0, D1]
                                 float eps, int64_t D1, int m, int n, int input_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [4][192]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      total += input;
    }
  }
  fg::row_sum<192, 1, 0>(total);
  const float deviation_mean = fg::divide_by_count(total, float(n));
  float deviation = 0;
  float deviation_rest = 0;
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float away = input - deviation_mean;
      deviation += away * away;
      deviation_rest += away;
    }
  }
  fg::row_sum<192, 1, 1>(deviation, deviation_rest);
  deviation -= deviation_rest * fg::divide_by_count(deviation_rest, float(n));
  total += deviation_rest;
  const float mean = fg::divide_by_count(total, float(D1));
  const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
    const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
    fg::Vec<float, 4> out_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float weight = weight_v[k];
      const float bias = bias_v[k];
      const float result_ = (input - mean) * rstd * weight + bias;
      out_v[k] = 0.5f * result_ * erfcf(-0.7071067811865476f * result_);
    }
    fg::store_vector<4>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
