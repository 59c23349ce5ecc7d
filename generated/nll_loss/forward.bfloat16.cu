// fusegen emit nll_loss --which forward --dtype bfloat16 --dtype target=int64 --shape input=512,3072
//     --shape target=512
#include "fusegen.cuh"

// nll_loss, forward                                           declared in ops/classes.py
//   total = sum[d1](where(index(d1) == target, input, 0))
// row: a block a result, reduced over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void nll_loss_forward_bf16_total(const bf16* __restrict__ input_ptr,      // [D0, D1]
                                 const int64_t* __restrict__ target_ptr,  // [D0]
                                 float* __restrict__ total_ptr,           // [D0]
                                 int m, int n, int input_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;
  const int64_t target = fg::load(target_ptr + j0);

  fg::Chains<float> total_chains;
  for (int at = 8 * threadIdx.x; at < n; at += 2048) {
    const int j1 = at;
    const auto input_v = fg::load_vector<8>(input_ptr + j0 * input_stride0 + j1);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const int64_t index_d1 = j1 + k;
      total_part += index_d1 == target ? input : 0.0f;
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());

  if (threadIdx.x == 0) {
    fg::store(total_ptr + j0, total);
  }
}

// nll_loss, forward                                           declared in ops/classes.py
//   counted = (target != ignore_index) & (target >= 0) & (target < D1)
//   total_3 = sum[d0](int64(counted))
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void nll_loss_forward_bf16_total_3(const int64_t* __restrict__ target_ptr,  // [D0]
                                   int64_t* __restrict__ total_3_ptr,       // []
                                   int64_t ignore_index, int64_t D1, int n) {
  fg::wait_for_previous_kernel();
  int64_t total_3 = 0;

  // The blocks take turns; each thread owns 2 consecutive elements at a time.
  const int first = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 2 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto target_v = fg::load_vector<2>(target_ptr + at);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t target = target_v[k];
      const bool counted = ((target != ignore_index) & (target >= 0)) & (target < D1);
      total_3 += int64_t(counted);
    }
  }
  total_3 = fg::block_sum<256>(total_3);

  if (threadIdx.x == 0) {
    fg::store(total_3_ptr, total_3);
  }
}

// nll_loss, forward                                           declared in ops/classes.py
//   counted = (target != ignore_index) & (target >= 0) & (target < D1)
//   loss = where(counted, -total, 0)
//   total_2 = sum[d0](loss)
//   out = total_2 / float32(total_3)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void nll_loss_forward_bf16_out(const int64_t* __restrict__ target_ptr,  // [D0]
                               const float* total_ptr,                  // [D0]
                               const int64_t* total_3_ptr,              // []
                               bf16* __restrict__ out_ptr,              // []
                               int64_t ignore_index, int64_t D1, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_2_chains;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto target_v = fg::load_vector<4>(target_ptr + at);
    const auto total_v = fg::load_vector<4>(total_ptr + at);
    float total_2_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t target = target_v[k];
      const float total = total_v[k];
      const bool counted = ((target != ignore_index) & (target >= 0)) & (target < D1);
      const float loss = counted ? -total : 0.0f;
      total_2_part += loss;
    }
    total_2_chains.add(total_2_part);
  }
  const float total_2 = fg::block_sum<256>(total_2_chains.total());

  if (threadIdx.x == 0) {
    const int64_t total_3 = fg::load(total_3_ptr);
    fg::store(out_ptr, fg::divide(total_2, float(total_3)));
  }
}
