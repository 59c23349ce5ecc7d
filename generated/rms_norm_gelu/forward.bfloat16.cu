// fusegen emit rms_norm_gelu --which forward --dtype bfloat16 --shape input=512,3072 --shape weight=3072
//     --arg normalized_shape=(3072,)
#include "fusegen.cuh"

// rms_norm_gelu, forward                                      declared in ops/fused_norms.py
//   total = sum[d1](input * input)
//   sum = total / float32(D1) + 1.1920928955078125e-07
//   rrms = rsqrt(sum)
//   result_ = input * rrms * weight
//   out = 0.5 * result_ * erfc(-0.7071067811865476 * result_)
// rows: 96 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(96, 14)
void rms_norm_gelu_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                                const bf16* __restrict__ weight_ptr,  // [D1]
                                bf16* __restrict__ out_ptr,           // [D0, D1]
                                int64_t D1, int m, int n, int input_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][96]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (96 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      total += input * input;
    }
  }
  fg::row_sum<96, 1, 0>(total);
  const float sum = fg::divide_by_count(total, float(D1)) + 1.1920928955078125e-07f;
  const float rrms = rsqrtf(sum);

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (96 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto weight_v = fg::load_vector<8>(weight_ptr + j1);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float weight = weight_v[k];
      const float result_ = input * rrms * weight;
      out_v[k] = 0.5f * result_ * fg::fast_erfc(-0.7071067811865476f * result_);
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
