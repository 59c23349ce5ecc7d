// fusegen emit std --which forward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// std, forward                                                declared in ops/reductions.py
//   maximum_value = maximum(float32(D0 * D1) - 1, 0)
//   deviation = squared_deviation[d0, d1](input)
//   ratio_deviation = deviation / maximum_value
//   same = ratio_deviation == 0
//   out = where(same, ratio_deviation, sqrt(where(same, 1, ratio_deviation)))
// rows: 16 blocks of 512 threads a row over D0, D1, which passes by in chunks: read once
extern "C" __global__ FUSEGEN_CLUSTER(16) __launch_bounds__(512, 2)
void std_forward_f32(const float* __restrict__ input_ptr,  // [D0, D1]
                     float* __restrict__ out_ptr,          // []
                     int64_t D0, int64_t D1, int m, int n) {
  // 16 blocks of 512 threads share a row.
  fg::Link<16> link;
  const int row = int(blockIdx.x) / 16;

  link.ready();  // all blocks of the cluster have begun
  const float maximum_value = fg::maximum(float(D0 * D1) - 1.0f, 0.0f);

  fg::Moments<float> deviation_state;
  for (int begin = 8192 * fg::cluster_rank(); begin < n; begin += 131072) {
    fg::Raw<float, 4> input_row[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (512 * part + threadIdx.x);
      const int j0 = at;
      input_row[part] = fg::load_raw<4>(input_ptr + j0);
    }
    fg::Moments<float> deviation_chunk;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        deviation_chunk.see(input);
      }
      deviation_chunk.saw(4);
    }
    deviation_chunk.settle();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        deviation_chunk.take(input);
      }
    }
    deviation_chunk.finish();
    deviation_state.merge(deviation_chunk);
  }
  fg::cluster_merge<512, 0>(link, deviation_state);
  const float deviation = deviation_state.result();
  const float ratio_deviation = deviation / maximum_value;
  const bool same = ratio_deviation == 0.0f;

  if (threadIdx.x == 0 && fg::cluster_rank() == 0) {
    fg::store(out_ptr, same ? ratio_deviation : sqrtf(same ? 1.0f : ratio_deviation));
  }
}
