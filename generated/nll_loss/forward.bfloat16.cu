// fusegen emit nll_loss --which forward --dtype bfloat16 --dtype target=int64 --shape input=512,3072
//     --shape target=512
#include "fusegen.cuh"

// nll_loss, forward                                           declared in ops/classes.py
//   counted = (target != ignore_index) & (target >= 0) & (target < D1)
//   total = sum[d0](where(counted, -input_at, 0))
//   total_3 = sum[d0](int64(counted))
//   out = total / float32(total_3)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void nll_loss_forward_bf16(const int64_t* __restrict__ target_ptr,  // [D0]
                           const bf16* __restrict__ input_ptr,      // [D0, D1]
                           bf16* __restrict__ out_ptr,              // []
                           int64_t ignore_index, int64_t D1, int n, int input_stride0) {
  fg::Chains<float> total_chains;
  int64_t total_3 = 0;

  // The blocks take turns; each thread owns 2 consecutive elements at a time.
  const int first = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 2 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const int j0 = at;
    const auto target_v = fg::load_vector<2>(target_ptr + at);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t target = target_v[k];
      const float input_at = fg::gather(input_ptr + j0 * input_stride0 + k * input_stride0, target, D1, 1);
      const bool counted = ((target != ignore_index) & (target >= 0)) & (target < D1);
      total_part += counted ? -input_at : 0.0f;
      total_3 += int64_t(counted);
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());
  total_3 = fg::block_sum<256>(total_3);

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide(total, float(total_3)));
  }
}
