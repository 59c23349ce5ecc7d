// fusegen emit residual_bias_rms_norm_gelu --which forward --dtype bfloat16 --shape input=512,3072 --shape bias=3072
//     --shape residual=512,3072 --shape weight=3072 --arg normalized_shape=(3072,)
#include "fusegen.cuh"

// residual_bias_rms_norm_gelu, forward                        declared in ops/fused_norms.py
//   total_2 = input + bias + residual
//   total = sum[d1](total_2 * total_2)
//   sum = total / float32(D1) + 1.1920928955078125e-07
//   rrms = rsqrt(sum)
//   result_ = total_2 * rrms * weight
//   out = 0.5 * result_ * erfc(-0.7071067811865476 * result_)
// rows: 192 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(192, 7)
void residual_bias_rms_norm_gelu_forward_bf16(const bf16* __restrict__ input_ptr,     // [D0, D1]
                                              const bf16* __restrict__ bias_ptr,      // [D1]
                                              const bf16* __restrict__ residual_ptr,  // [D0, D1]
                                              const bf16* __restrict__ weight_ptr,    // [D1]
                                              bf16* __restrict__ out_ptr,             // [D0, D1]
                                              int64_t D1, int m, int n, int input_stride0, int residual_stride0,
                                              int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [2][192]);
  using residual_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(residual_element, residual_row, [2][192]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
    fg::load_async(&residual_row[part][thread], residual_ptr + j0 * residual_stride0 + j1);
  }
  fg::await_loads();

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float total_2 = input + bias + residual;
      total += total_2 * total_2;
    }
  }
  fg::row_sum<192, 1, 0>(total);
  const float sum = fg::divide_by_count(total, float(D1)) + 1.1920928955078125e-07f;
  const float rrms = rsqrtf(sum);

#pragma unroll 2
  for (int part = 0; part < 2; ++part) {
    const int at = 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    const auto weight_v = fg::load_vector<8>(weight_ptr + j1);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float bias = bias_v[k];
      const float residual = residual_v[k];
      const float weight = weight_v[k];
      const float total_2 = input + bias + residual;
      const float result_ = total_2 * rrms * weight;
      out_v[k] = 0.5f * result_ * fg::fast_erfc(-0.7071067811865476f * result_);
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
