// fusegen emit layer_norm --which forward --dtype float32 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_90
#include "fusegen.cuh"

// layer_norm, forward                                         declared in ops/norms.py
//   total = sum[d1](input)
//   deviation = squared_deviation[d1](input)
//   mean = total / float32(D1)
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   out = (input - mean) * rstd * weight + bias
// rows: 2 blocks of 256 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ FUSEGEN_CLUSTER(2) __launch_bounds__(256, 5)
void layer_norm_forward_f32(const float* __restrict__ input_ptr,   // [D0, D1]
                            const float* __restrict__ weight_ptr,  // [D1]
                            const float* __restrict__ bias_ptr,    // [D1]
                            float* __restrict__ out_ptr,           // [D0, D1]
                            float eps, int64_t D1, int m, int n, int input_stride0, int out_stride0) {
  // 2 blocks of 256 threads share a row.
  fg::Link<2> link;
  const int begin = int(fg::cluster_rank()) * 8192;
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x) / 2;
  using input_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(input_element, input_row, [8][256]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();
  link.ready();  // all blocks of the cluster have begun

  fg::Moments<float> deviation_state;
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      deviation_state.see(input);
    }
    deviation_state.saw(4);
  }
  deviation_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      deviation_state.take(input);
    }
  }
  deviation_state.finish();
  fg::cluster_merge<256, 0>(link, deviation_state);
  const float deviation = deviation_state.result();
  const float total = deviation_state.partner();
  const float mean = fg::divide_by_count(total, float(D1));
  const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);

#pragma unroll 2
  for (int part = 0; part < 8; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
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
      out_v[k] = (input - mean) * rstd * weight + bias;
    }
    fg::store_vector<4>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
