// fusegen emit var --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// var, backward                                               declared in ops/reductions.py
//   sum_of_deviation = sum[d0, d1](input)
//   value = float32(D0 * D1)
//   maximum_value = maximum(value - 1, 0)
//   ratio_sum_of_deviation = sum_of_deviation / value
//   prod_2 = d_out * (1 / maximum_value) * 2
// full reduction: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void var_backward_bf16_ratio_sum_of_deviation_and_1_more(const bf16* __restrict__ input_ptr,            // [D0, D1]
                                                         float* __restrict__ sum_of_deviation_partial,  // [splits, m]
                                                         int n) {
  fg::Chains<float> sum_of_deviation_chains;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
    float sum_of_deviation_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      sum_of_deviation_part += input;
    }
    sum_of_deviation_chains.add(sum_of_deviation_part);
  }
  const float sum_of_deviation = fg::block_sum<256>(sum_of_deviation_chains.total());

  if (threadIdx.x == 0) {
    sum_of_deviation_partial[blockIdx.x] = sum_of_deviation;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void var_backward_bf16_ratio_sum_of_deviation_and_1_more_finish(
    const float* sum_of_deviation_partial,           // [splits, m]
    const bf16* __restrict__ d_out_ptr,              // []
    float* __restrict__ ratio_sum_of_deviation_ptr,  // []
    float* __restrict__ prod_2_ptr,                  // []
    int64_t D0, int64_t D1, int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  float sum_of_deviation = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    sum_of_deviation += sum_of_deviation_partial[piece * m + result];
  }
  sum_of_deviation = fg::block_sum<128>(sum_of_deviation);
  if (threadIdx.x > 0) return;
  const float d_out = fg::load(d_out_ptr);
  const float value = float(D0 * D1);
  const float maximum_value = fg::maximum(value - 1.0f, 0.0f);
  fg::store(ratio_sum_of_deviation_ptr, fg::divide(sum_of_deviation, value));
  fg::store(prod_2_ptr, d_out * fg::divide(1.0f, maximum_value) * 2.0f);
}

// var, backward                                               declared in ops/reductions.py
//   d_input = prod_2 * (input - ratio_sum_of_deviation)
// elementwise: 8 elements a thread; ratio_sum_of_deviation, prod_2 the same for all
extern "C" __global__ __launch_bounds__(256)
void var_backward_bf16_d_input(const bf16* __restrict__ input_ptr,       // [D0, D1]
                               const float* ratio_sum_of_deviation_ptr,  // []
                               const float* prod_2_ptr,                  // []
                               bf16* __restrict__ d_input_ptr,           // [D0, D1]
                               int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const float ratio_sum_of_deviation = fg::load(ratio_sum_of_deviation_ptr);
  const float prod_2 = fg::load(prod_2_ptr);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    d_input_v[k] = prod_2 * (input - ratio_sum_of_deviation);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
