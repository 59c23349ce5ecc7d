// fusegen emit cosine_embedding_loss --which forward --dtype bfloat16 --shape input1=512,3072 --shape input2=512,3072
//     --shape target=512
#include "fusegen.cuh"

// cosine_embedding_loss, forward                              declared in ops/margins.py
//   total = sum[d1](input1 * input1)
//   total_2 = sum[d1](input2 * input2)
//   total_3 = sum[d1](input1 * input2)
// row: a block a result, reduced over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void cosine_embedding_loss_forward_bf16_total_and_2_more(const bf16* __restrict__ input1_ptr,  // [D0, D1]
                                                         const bf16* __restrict__ input2_ptr,  // [D0, D1]
                                                         float* __restrict__ total_ptr,        // [D0]
                                                         float* __restrict__ total_2_ptr,      // [D0]
                                                         float* __restrict__ total_3_ptr,      // [D0]
                                                         int m, int n, int input1_stride0, int input2_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  fg::Chains<float> total_chains;
  fg::Chains<float> total_2_chains;
  fg::Chains<float> total_3_chains;
  for (int at = 8 * threadIdx.x; at < n; at += 2048) {
    const int j1 = at;
    const auto input1_v = fg::load_vector<8>(input1_ptr + j0 * input1_stride0 + j1);
    const auto input2_v = fg::load_vector<8>(input2_ptr + j0 * input2_stride0 + j1);
    float total_part = 0;
    float total_2_part = 0;
    float total_3_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input1 = input1_v[k];
      const float input2 = input2_v[k];
      total_part += input1 * input1;
      total_2_part += input2 * input2;
      total_3_part += input1 * input2;
    }
    total_chains.add(total_part);
    total_2_chains.add(total_2_part);
    total_3_chains.add(total_3_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());
  const float total_2 = fg::block_sum<256>(total_2_chains.total());
  const float total_3 = fg::block_sum<256>(total_3_chains.total());

  if (threadIdx.x == 0) {
    fg::store(total_ptr + j0, total);
    fg::store(total_2_ptr + j0, total_2);
    fg::store(total_3_ptr + j0, total_3);
  }
}

// cosine_embedding_loss, forward                              declared in ops/margins.py
//   square1 = total + 1e-12
//   square2 = total_2 + 1e-12
//   cos_ = total_3 * (rsqrt(square1) * rsqrt(square2))
//   diff_cos_margin = cos_ - margin
//   chosen = where(target == -1, where(diff_cos_margin < 0, 0, diff_cos_margin), 0)
//   loss = where(target == 1, 1 - cos_, chosen)
//   total_4 = sum[d0](loss)
//   out = total_4 / float32(D0)
// whole: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void cosine_embedding_loss_forward_bf16_out(const bf16* __restrict__ target_ptr,  // [D0]
                                            const float* total_ptr,               // [D0]
                                            const float* total_2_ptr,             // [D0]
                                            const float* total_3_ptr,             // [D0]
                                            bf16* __restrict__ out_ptr,           // []
                                            float margin, int64_t D0, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_4_chains;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto target_v = fg::load_vector<8>(target_ptr + at);
    const auto total_v = fg::load_vector<8>(total_ptr + at);
    const auto total_2_v = fg::load_vector<8>(total_2_ptr + at);
    const auto total_3_v = fg::load_vector<8>(total_3_ptr + at);
    float total_4_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float target = target_v[k];
      const float total = total_v[k];
      const float total_2 = total_2_v[k];
      const float total_3 = total_3_v[k];
      const float square1 = total + 1e-12f;
      const float square2 = total_2 + 1e-12f;
      const float cos_ = total_3 * (rsqrtf(square1) * rsqrtf(square2));
      const float diff_cos_margin = cos_ - margin;
      const float chosen = target == -1.0f ? (diff_cos_margin < 0.0f ? 0.0f : diff_cos_margin) : 0.0f;
      const float loss = target == 1.0f ? 1.0f - cos_ : chosen;
      total_4_part += loss;
    }
    total_4_chains.add(total_4_part);
  }
  const float total_4 = fg::block_sum<256>(total_4_chains.total());

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide_by_count(total_4, float(D0)));
  }
}
