// fusegen emit all --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// all, forward                                                declared in ops/reductions.py
//   total = sum[d0, d1](int64(logical_not(bool(int64(input != 0)))))
//   out = total == 0
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void all_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                      int64_t* __restrict__ total_partial,  // [splits, m]
                      int n) {
  int64_t total = 0;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      total += int64_t(!bool(int64_t(input != 0.0f)));
    }
  }
  total = fg::block_sum<256>(total);

  if (threadIdx.x == 0) {
    total_partial[blockIdx.x] = total;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void all_forward_bf16_finish(const int64_t* total_partial,  // [splits, m]
                             bool* __restrict__ out_ptr,    // []
                             int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  int64_t total = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    total += total_partial[piece * m + result];
  }
  total = fg::block_sum<128>(total);
  if (threadIdx.x > 0) return;
  fg::store(out_ptr, total == 0);
}
