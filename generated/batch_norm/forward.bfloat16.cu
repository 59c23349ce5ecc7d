// fusegen emit batch_norm --which forward --dtype bfloat16 --shape input=8,64,56,56 --shape weight=64 --shape bias=64
//     --arg running_mean=None --arg running_var=None
#include "fusegen.cuh"

// batch_norm, forward                                         declared in ops/channels.py
//   value = float32(D0 * D2 * D3)
//   total = sum[d0, d2, d3](input)
//   deviation = squared_deviation[d0, d2, d3](input)
//   mean = total / value
//   rstd = rsqrt(deviation / value + eps)
//   y = (input - mean) * rstd
//   out = y * weight + bias
// rows: 2 blocks of 224 threads a row over D0, D2, D3, which stays in shared memory: read once
extern "C" __global__ FUSEGEN_CLUSTER(2) __launch_bounds__(224, 6)
void batch_norm_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1, D2, D3]
                             const bf16* __restrict__ weight_ptr,  // [D1]
                             const bf16* __restrict__ bias_ptr,    // [D1]
                             bf16* __restrict__ out_ptr,           // [D0, D1, D2, D3]
                             float eps, int64_t D0, int64_t D2, int64_t D3, int m, int n, fg::Divisor n2,
                             int input_stride0, int input_stride1, int out_stride0, int out_stride1) {
  // 2 blocks of 224 threads share a row.
  fg::Link<2> link;
  const int begin = int(fg::cluster_rank()) * 12544;
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x) / 2;
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [7][224]);
  const int j0 = row;
  const float weight = fg::load(weight_ptr + j0);
  const float bias = fg::load(bias_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    int rest = at;
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1 * input_stride1 + j2);
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun
  const float value = float(D0 * D2 * D3);

  fg::Moments<float> deviation_state;
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      deviation_state.see(input);
    }
    deviation_state.saw(8);
  }
  deviation_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      deviation_state.take_fast(input);
    }
  }
  deviation_state.finish();
  fg::cluster_merge<224, 0>(link, deviation_state);
  const float deviation = deviation_state.result();
  const float total = deviation_state.partner();
  const float mean = fg::divide(total, value);
  const float rstd = rsqrtf(fg::divide(deviation, value) + eps);

#pragma unroll 2
  for (int part = 0; part < 7; ++part) {
    const int at = begin + 8 * (224 * part + threadIdx.x);
    int rest = at;
    const int j2 = fg::take(rest, n2);
    const int j1 = rest;
    const auto input_v = fg::widen(input_row[part][thread]);
    fg::Vec<float, 8> out_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float y = (input - mean) * rstd;
      out_v[k] = y * weight + bias;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1 * out_stride1 + j2), out_v);
  }
}
