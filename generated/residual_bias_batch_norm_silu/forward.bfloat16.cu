// fusegen emit residual_bias_batch_norm_silu --which forward --dtype bfloat16 --shape input=8,64,56,56
//     --shape bias=64 --shape residual=8,64,56,56 --shape weight=64 --arg running_mean=None --arg running_var=None
#include "fusegen.cuh"

// residual_bias_batch_norm_silu, forward                      declared in ops/fused_norms.py
//   value = float32(D0 * D2 * D3)
//   total_2 = input + bias + residual
//   total = sum[d0, d2, d3](total_2)
//   deviation = squared_deviation[d0, d2, d3](total_2)
//   y = (total_2 - total / value) * rsqrt(deviation / value + eps)
//   result_ = y * weight
//   out = result_ * sigmoid(result_)
// rows: 4 blocks of 224 threads a row over D0, D2, D3, which stays in shared memory: read once
extern "C" __global__ FUSEGEN_CLUSTER(4) __launch_bounds__(224, 6)
void residual_bias_batch_norm_silu_forward_bf16(const bf16* __restrict__ input_ptr,     // [D0, D1, D2, D3]
                                                const bf16* __restrict__ bias_ptr,      // [D1]
                                                const bf16* __restrict__ residual_ptr,  // [D0, D1, D2, D3]
                                                const bf16* __restrict__ weight_ptr,    // [D1]
                                                bf16* __restrict__ out_ptr,             // [D0, D1, D2, D3]
                                                float eps, int64_t D0, int64_t D2, int64_t D3, int m, int n,
                                                fg::Divisor n2, int input_stride0, int input_stride1,
                                                int residual_stride0, int residual_stride1, int out_stride0,
                                                int out_stride1) {
  // 4 blocks of 224 threads share a row.
  fg::Link<4> link;
  const int begin = int(fg::cluster_rank()) * 7168;
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x) / 4;
  const int end = n;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][224]);
  using residual_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(residual_element, residual_row, [4][224]);
  const int j0 = row;
  const float bias = fg::load(bias_ptr + j0);
  const float weight = fg::load(weight_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at < end) {
      int rest = at;
      const int j2 = fg::take(rest, n2);
      const int j1 = rest;
      fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1 * input_stride1 + j2);
      const int residual_at = j0 * residual_stride0 + j1 * residual_stride1 + j2;
      fg::load_async(&residual_row[part][thread], residual_ptr + residual_at);
    }
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D0 * D2 * D3);

  fg::Moments<float> deviation_state;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float total_2 = input + bias + residual;
      deviation_state.see(total_2);
    }
    deviation_state.saw(8);
  }
  deviation_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto residual_v = fg::widen(residual_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float total_2 = input + bias + residual;
      deviation_state.take_fast(total_2);
    }
  }
  deviation_state.finish();
  fg::cluster_merge<224, 0>(link, deviation_state);
  const float deviation = deviation_state.result();
  const float total = deviation_state.partner();

#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    if (at >= end) break;
    int rest = at;
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    const auto residual_v = fg::widen(residual_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float residual = residual_v[k];
      const float total_2 = input + bias + residual;
      const float y = (total_2 - total / value) * rsqrtf(deviation / value + eps);
      const float result_ = y * weight;
      out_v[k] = result_ * fg::fast_sigmoid(result_);
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1 * out_stride1 + j2), out_v);
  }
}
