// fusegen emit prod --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// prod, backward                                              declared in ops/reductions.py
//   same_input = input == 0
//   prod_input_input = input * input
//   zeros_total = sum[d0, d1](where(same_input, 1, 0))
//   sum_of_zeros_total = sum[d0, d1](where(same_input, input, 0))
//   squares_of_zeros_total = sum[d0, d1](where(same_input, prod_input_input, 0))
//   rest_total = prod[d0, d1](where(same_input, 1, input))
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void prod_backward_f32_zeros_total_and_3_more(const float* __restrict__ input_ptr,                  // [D0, D1]
                                              float* __restrict__ zeros_total_partial,              // [splits, m]
                                              float* __restrict__ sum_of_zeros_total_partial,       // [splits, m]
                                              float* __restrict__ squares_of_zeros_total_partial,   // [splits, m]
                                              fg::Product<float>* __restrict__ rest_total_partial,  // [splits, m]
                                              int n) {
  fg::Chains<float> zeros_total_chains;
  fg::Chains<float> sum_of_zeros_total_chains;
  fg::Chains<float> squares_of_zeros_total_chains;
  fg::Product<float> rest_total_state;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<4>(input_ptr + at);
    float zeros_total_part = 0;
    float sum_of_zeros_total_part = 0;
    float squares_of_zeros_total_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const bool same_input = input == 0.0f;
      const float prod_input_input = input * input;
      zeros_total_part += same_input ? 1.0f : 0.0f;
      sum_of_zeros_total_part += same_input ? input : 0.0f;
      squares_of_zeros_total_part += same_input ? prod_input_input : 0.0f;
      rest_total_state.add(same_input ? 1.0f : input);
    }
    zeros_total_chains.add(zeros_total_part);
    sum_of_zeros_total_chains.add(sum_of_zeros_total_part);
    squares_of_zeros_total_chains.add(squares_of_zeros_total_part);
  }
  const float zeros_total = fg::block_sum<256>(zeros_total_chains.total());
  const float sum_of_zeros_total = fg::block_sum<256>(sum_of_zeros_total_chains.total());
  const float squares_of_zeros_total = fg::block_sum<256>(squares_of_zeros_total_chains.total());
  rest_total_state = fg::block_merge<256>(rest_total_state);

  if (threadIdx.x == 0) {
    zeros_total_partial[blockIdx.x] = zeros_total;
    sum_of_zeros_total_partial[blockIdx.x] = sum_of_zeros_total;
    squares_of_zeros_total_partial[blockIdx.x] = squares_of_zeros_total;
    rest_total_partial[blockIdx.x] = rest_total_state;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void prod_backward_f32_zeros_total_and_3_more_finish(const float* zeros_total_partial,                // [splits, m]
                                                     const float* sum_of_zeros_total_partial,         // [splits, m]
                                                     const float* squares_of_zeros_total_partial,     // [splits, m]
                                                     const fg::Product<float>* rest_total_partial,    // [splits, m]
                                                     float* __restrict__ zeros_total_ptr,             // []
                                                     float* __restrict__ sum_of_zeros_total_ptr,      // []
                                                     float* __restrict__ squares_of_zeros_total_ptr,  // []
                                                     float* __restrict__ rest_total_ptr,              // []
                                                     int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  float zeros_total = 0;
  float sum_of_zeros_total = 0;
  float squares_of_zeros_total = 0;
  fg::Product<float> rest_total_state;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    zeros_total += zeros_total_partial[piece * m + result];
    sum_of_zeros_total += sum_of_zeros_total_partial[piece * m + result];
    squares_of_zeros_total += squares_of_zeros_total_partial[piece * m + result];
    rest_total_state.merge(rest_total_partial[piece * m + result]);
  }
  zeros_total = fg::block_sum<128>(zeros_total);
  sum_of_zeros_total = fg::block_sum<128>(sum_of_zeros_total);
  squares_of_zeros_total = fg::block_sum<128>(squares_of_zeros_total);
  rest_total_state = fg::block_merge<128>(rest_total_state);
  if (threadIdx.x > 0) return;
  const float rest_total = rest_total_state.result();
  fg::store(zeros_total_ptr, zeros_total);
  fg::store(sum_of_zeros_total_ptr, sum_of_zeros_total);
  fg::store(squares_of_zeros_total_ptr, squares_of_zeros_total);
  fg::store(rest_total_ptr, rest_total);
}

// prod, backward                                              declared in ops/reductions.py
//   same_input = input == 0
//   diff = sum_of_zeros_total - input
//   prod_input_input = input * input
//   prod = (diff * diff - (squares_of_zeros_total - prod_input_input)) * 0.5
//   chosen = where(zeros_total == 3, prod * rest_total, 0)
//   chosen_2 = where(zeros_total == 2, diff * rest_total, chosen)
//   chosen_3 = where(same_input, where(zeros_total == 1, rest_total, chosen_2), total / input)
//   d_input = d_out * chosen_3
// elementwise: 4 elements a thread; d_out, total, zeros_total, sum_of_zeros_total, squares_of_zeros_total, rest_total
//     the same for all
extern "C" __global__ __launch_bounds__(256)
void prod_backward_f32_d_input(const float* __restrict__ input_ptr,      // [D0, D1]
                               const float* __restrict__ d_out_ptr,      // []
                               const float* __restrict__ total_ptr,      // []
                               const float* zeros_total_ptr,             // []
                               const float* sum_of_zeros_total_ptr,      // []
                               const float* squares_of_zeros_total_ptr,  // []
                               const float* rest_total_ptr,              // []
                               float* __restrict__ d_input_ptr,          // [D0, D1]
                               int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  const float total = fg::load(total_ptr);
  const float zeros_total = fg::load(zeros_total_ptr);
  const float sum_of_zeros_total = fg::load(sum_of_zeros_total_ptr);
  const float squares_of_zeros_total = fg::load(squares_of_zeros_total_ptr);
  const float rest_total = fg::load(rest_total_ptr);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const bool same_input = input == 0.0f;
    const float diff = sum_of_zeros_total - input;
    const float prod_input_input = input * input;
    const float prod = (diff * diff - (squares_of_zeros_total - prod_input_input)) * 0.5f;
    const float chosen = zeros_total == 3.0f ? prod * rest_total : 0.0f;
    const float chosen_2 = zeros_total == 2.0f ? diff * rest_total : chosen;
    const float chosen_3 = same_input ? (zeros_total == 1.0f ? rest_total : chosen_2) : total / input;
    d_input_v[k] = d_out * chosen_3;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
