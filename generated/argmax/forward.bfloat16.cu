// fusegen emit argmax --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// argmax, forward                                             declared in ops/reductions.py
//   bottom = first_max[d0, d1](located(input, index(d0, d1)))
//   out = bottom
// full reduction: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void argmax_forward_bf16(const bf16* __restrict__ input_ptr,                    // [D0, D1]
                         fg::FirstMaximum<float>* __restrict__ bottom_partial,  // [splits, m]
                         int n) {
  fg::FirstMaximum<float> bottom_state;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const int j0 = at;
    const auto input_v = fg::load_vector<8>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const int64_t index_d0_d1 = j0 + k;
      bottom_state.add(input, index_d0_d1);
    }
  }
  bottom_state = fg::block_merge<256>(bottom_state);

  if (threadIdx.x == 0) {
    bottom_partial[blockIdx.x] = bottom_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void argmax_forward_bf16_finish(const fg::FirstMaximum<float>* bottom_partial,  // [splits, m]
                                int64_t* __restrict__ out_ptr,                  // []
                                int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  fg::FirstMaximum<float> bottom_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    bottom_state.merge(bottom_partial[piece * m + result]);
  }
  bottom_state = fg::block_merge<128>(bottom_state);
  if (threadIdx.x > 0) return;
  const int64_t bottom = bottom_state.result();
  fg::store(out_ptr, bottom);
}
