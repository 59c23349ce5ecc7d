// fusegen emit layer_norm --which forward --dtype bfloat16 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_75
#include "fusegen.cuh"

// layer_norm, forward                                         declared in ops/norms.py
//   total = sum[d1](input)
//   deviation = squared_deviation[d1](input)
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   out = (input - mean) * rstd * weight + bias
// rows: 256 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(256, 5)
void layer_norm_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                             const bf16* __restrict__ weight_ptr,  // [D1]
                             const bf16* __restrict__ bias_ptr,    // [D1]
                             bf16* __restrict__ out_ptr,           // [D0, D1]
                             float eps, int64_t D1, int m, int n, int input_stride0, int out_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [8][256]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const int at = 8 * (256 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  float total = 0;
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      total += input;
    }
  }
  fg::row_sum<256, 1, 0>(total);
  const float deviation_mean = fg::divide_by_count(total, float(n));
  float deviation = 0;
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float away = input - deviation_mean;
      deviation += away * away;
    }
  }
  fg::row_sum<256, 1, 1>(deviation);
  const float mean = fg::divide_by_count(total, float(D1));
  const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);

#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const int at = 8 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto weight_v = fg::load_vector<8>(weight_ptr + j1);
    const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float weight = weight_v[k];
      const float bias = bias_v[k];
      out_v[k] = (input - mean) * rstd * weight + bias;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
