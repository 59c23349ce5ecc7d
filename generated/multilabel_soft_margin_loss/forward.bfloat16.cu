// fusegen emit multilabel_soft_margin_loss --which forward --dtype bfloat16 --shape input=512,3072
//     --shape target=512,3072
#include "fusegen.cuh"

// multilabel_soft_margin_loss, forward                        declared in ops/margins.py
//   total = sum[d1]((1 - target) * input - logsigmoid(input))
// row: a block a result, reduced over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void multilabel_soft_margin_loss_forward_bf16_total(const bf16* __restrict__ input_ptr,   // [D0, D1]
                                                    const bf16* __restrict__ target_ptr,  // [D0, D1]
                                                    float* __restrict__ total_ptr,        // [D0]
                                                    int m, int n, int input_stride0, int target_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  fg::Chains<float> total_chains;
  for (int at = 8 * threadIdx.x; at < n; at += 2048) {
    const int j1 = at;
    const auto input_v = fg::load_vector<8>(input_ptr + j0 * input_stride0 + j1);
    const auto target_v = fg::load_vector<8>(target_ptr + j0 * target_stride0 + j1);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const float target = target_v[k];
      total_part += (1.0f - target) * input - fg::fast_logsigmoid(input);
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());

  if (threadIdx.x == 0) {
    fg::store(total_ptr + j0, total);
  }
}

// multilabel_soft_margin_loss, forward                        declared in ops/margins.py
//   loss = total / float32(D1)
//   total_2 = sum[d0](loss)
//   out = total_2 / float32(D0)
// whole: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void multilabel_soft_margin_loss_forward_bf16_out(const float* total_ptr,      // [D0]
                                                  bf16* __restrict__ out_ptr,  // []
                                                  int64_t D0, int64_t D1, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_2_chains;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto total_v = fg::load_vector<4>(total_ptr + at);
    float total_2_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float total = total_v[k];
      const float loss = fg::divide_by_count(total, float(D1));
      total_2_part += loss;
    }
    total_2_chains.add(total_2_part);
  }
  const float total_2 = fg::block_sum<256>(total_2_chains.total());

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide_by_count(total_2, float(D0)));
  }
}
