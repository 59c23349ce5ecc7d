// fusegen emit kl_div --which forward --dtype bfloat16 --shape input=512,3072 --shape target=512,3072
#include "fusegen.cuh"

// kl_div, forward                                             declared in ops/likelihoods.py
//   loss = xlogy(target, target) - target * input
//   total = sum[d0, d1](loss)
//   out = total / float32(D0 * D1)
// full reduction: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void kl_div_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                         const bf16* __restrict__ target_ptr,  // [D0, D1]
                         float* __restrict__ total_partial,    // [splits, m]
                         int n) {
  fg::Chains<float> total_chains;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
    const auto target_v = fg::load_vector<8>(target_ptr + at);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float target = target_v[k];
      const float loss = fg::fast_xlogy(target, target) - target * input;
      total_part += loss;
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());

  if (threadIdx.x == 0) {
    total_partial[blockIdx.x] = total;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void kl_div_forward_bf16_finish(const float* total_partial,  // [splits, m]
                                bf16* __restrict__ out_ptr,  // []
                                int64_t D0, int64_t D1, int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  float total = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    total += total_partial[piece * m + result];
  }
  total = fg::block_sum<128>(total);
  if (threadIdx.x > 0) return;
  fg::store(out_ptr, fg::divide_by_count(total, float(D0 * D1)));
}
