// fusegen emit var --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// var, forward                                                declared in ops/reductions.py
//   maximum_value = maximum(float32(D0 * D1) - 1, 0)
//   deviation = squared_deviation[d0, d1](input)
//   out = deviation / maximum_value
// rows: 16 blocks of 512 threads a row over D0, D1, which passes by in chunks: read once
extern "C" __global__ FUSEGEN_CLUSTER(16) __launch_bounds__(512, 2)
void var_forward_bf16(const bf16* __restrict__ input_ptr,  // [D0, D1]
                      bf16* __restrict__ out_ptr,          // []
                      int64_t D0, int64_t D1, int m, int n) {
  // 16 blocks of 512 threads share a row.
  fg::Link<16> link;
  const int row = int(blockIdx.x) / 16;

  link.ready();  // all blocks of the cluster have begun
  const float maximum_value = fg::maximum(float(D0 * D1) - 1.0f, 0.0f);

  fg::Moments<float> deviation_state;
  for (int begin = 16384 * fg::cluster_rank(); begin < n; begin += 262144) {
    fg::Raw<bf16, 8> input_row[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 8 * (512 * part + threadIdx.x);
      const int j0 = at;
      input_row[part] = fg::load_raw<8>(input_ptr + j0);
    }
    fg::Moments<float> deviation_chunk;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        deviation_chunk.see(input);
      }
      deviation_chunk.saw(8);
    }
    deviation_chunk.settle();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float input = input_v[k];
        deviation_chunk.take_fast(input);
      }
    }
    deviation_chunk.finish();
    deviation_state.merge(deviation_chunk);
  }
  fg::cluster_merge<512, 0>(link, deviation_state);
  const float deviation = deviation_state.result();

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(out_ptr, deviation / maximum_value);
  }
}
