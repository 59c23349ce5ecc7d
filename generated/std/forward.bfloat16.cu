// fusegen emit std --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// std, forward                                                declared in ops/reductions.py
//   deviation = squared_deviation[d0, d1](input)
//   maximum_value = maximum(float32(D0 * D1) - 1, 0)
//   ratio_deviation = deviation / maximum_value
//   same = ratio_deviation == 0
//   out = where(same, ratio_deviation, sqrt(where(same, 1, ratio_deviation)))
// whole: one pass adds up everything; cut into pieces that a second kernel adds up in order
extern "C" __global__ __launch_bounds__(256, 4)
void std_forward_bf16(const bf16* __restrict__ input_ptr,                  // [D0, D1]
                      fg::Moments<float>* __restrict__ deviation_partial,  // [splits, m]
                      int64_t D0, int64_t D1, int n) {
  fg::Moments<float> deviation_state;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      deviation_state.add(input);
    }
  }
  deviation_state = fg::block_merge<256>(deviation_state);

  if (threadIdx.x == 0) {
    deviation_partial[blockIdx.x] = deviation_state;
  }
}

// The pieces of each result, added in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void std_forward_bf16_finish(const fg::Moments<float>* __restrict__ deviation_partial,  // [splits, m]
                             bf16* __restrict__ out_ptr,                                // []
                             int64_t D0, int64_t D1, int m, int splits) {
  const int result = blockIdx.x;
  fg::Moments<float> deviation_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    deviation_state.merge(deviation_partial[int(piece) * m + result]);
  }
  deviation_state = fg::block_merge<128>(deviation_state);
  if (threadIdx.x > 0) return;
  const float deviation = deviation_state.result();
  const float maximum_value = fg::maximum(float(D0 * D1) - 1.0f, 0.0f);
  const float ratio_deviation = deviation / maximum_value;
  const bool same = ratio_deviation == 0.0f;
  fg::store(out_ptr, same ? ratio_deviation : sqrtf(same ? 1.0f : ratio_deviation));
}
