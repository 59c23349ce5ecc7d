// fusegen emit softmax --which backward --dtype bfloat16 --shape input=64,65536 --arch sm_75
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_sum_exp = sum[d1](-prod_d_out_out)
// row: a block a result, reduced over D1, along the fast axis; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void softmax_backward_bf16_d_sum_exp(const bf16* __restrict__ d_out_ptr,     // [D0, D1]
                                     const bf16* __restrict__ out_ptr,       // [D0, D1]
                                     float* __restrict__ d_sum_exp_partial,  // [splits, m]
                                     int m, int n, int chunk, int d_out_stride0, int out_stride0) {
  // A block owns a piece of one result's n elements.
  const int result = blockIdx.x;
  const int j0 = result;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Chains<float> d_sum_exp_chains;
#pragma unroll 2
  for (int at = begin + 8 * threadIdx.x; at < end; at += 2048) {
    const int j1 = at;
    const auto d_out_v = fg::load_vector<8>(d_out_ptr + j0 * d_out_stride0 + j1);
    const auto out_v = fg::load_vector<8>(out_ptr + j0 * out_stride0 + j1);
    float d_sum_exp_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_sum_exp_part -= prod_d_out_out;
    }
    d_sum_exp_chains.add(d_sum_exp_part);
  }
  const float d_sum_exp = fg::block_sum<256>(d_sum_exp_chains.total());

  if (threadIdx.x == 0) {
    d_sum_exp_partial[int(blockIdx.y) * m + result] = d_sum_exp;
  }
}

// The pieces of each result, combined in their order.
extern "C" __global__ __launch_bounds__(128)
void softmax_backward_bf16_d_sum_exp_finish(const float* d_sum_exp_partial,     // [splits, m]
                                            float* __restrict__ d_sum_exp_ptr,  // [D0]
                                            int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  const int j0 = result;
  float d_sum_exp = 0;
  for (int piece = 0; piece < splits; ++piece) {
    d_sum_exp += d_sum_exp_partial[piece * m + result];
  }
  fg::store(d_sum_exp_ptr + j0, d_sum_exp);
}

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_input = prod_d_out_out + d_sum_exp * out
// elementwise: 8 elements a thread; d_sum_exp broadcast
extern "C" __global__ __launch_bounds__(256)
void softmax_backward_bf16_d_input(const bf16* __restrict__ d_out_ptr,  // [D0, D1]
                                   const bf16* __restrict__ out_ptr,    // [D0, D1]
                                   const float* d_sum_exp_ptr,          // [D0]
                                   bf16* __restrict__ d_input_ptr,      // [D0, D1]
                                   int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  const auto out_v = fg::load_vector<8>(out_ptr + at);
  const float d_sum_exp = fg::load(d_sum_exp_ptr + j0);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float d_out = d_out_v[k];
    const float out = out_v[k];
    const float prod_d_out_out = d_out * out;
    d_input_v[k] = prod_d_out_out + d_sum_exp * out;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
