// fusegen emit var --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// var, forward                                                declared in ops/reductions.py
//   maximum_value = maximum(float32(D0 * D1) - 1, 0)
//   deviation = squared_deviation[d0, d1](input)
//   out = deviation / maximum_value
// rows: 512 threads a row over D0, D1, which is read once, in chunks that blocks share and a second kernel combines in
//     order
extern "C" __global__ __launch_bounds__(512, 2)
void var_forward_bf16(const bf16* __restrict__ input_ptr,                  // [D0, D1]
                      fg::Moments<float>* __restrict__ deviation_partial,  // [splits, m]
                      int m, int n) {
  const int row = int(blockIdx.x);

  fg::Moments<float> deviation_state;
  for (int begin = 16384 * int(blockIdx.y); begin < n; begin += 16384 * int(gridDim.y)) {
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
  fg::row_merge<512, 1, 0>(deviation_state);

  if (threadIdx.x == 0) {
    deviation_partial[int(blockIdx.y) * m + row] = deviation_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void var_forward_bf16_finish(const fg::Moments<float>* deviation_partial,  // [splits, m]
                             bf16* __restrict__ out_ptr,                   // []
                             int64_t D0, int64_t D1, int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::Moments<float> deviation_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    deviation_state.merge(deviation_partial[piece * m + result]);
  }
  deviation_state = fg::block_merge<128>(deviation_state);
  if (threadIdx.x > 0) return;
  const float deviation = deviation_state.result();
  const float maximum_value = fg::maximum(float(D0 * D1) - 1.0f, 0.0f);
  fg::store(out_ptr, fg::divide(deviation, maximum_value));
}
