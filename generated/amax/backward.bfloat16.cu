// fusegen emit amax --which backward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// amax, backward                                              declared in ops/reductions.py
//   same_input_top = input == top
//   ties_top = sum[d0, d1](where(same_input_top, 1, 0))
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void amax_backward_bf16_ties_top(const bf16* __restrict__ input_ptr,    // [D0, D1]
                                 const float* __restrict__ top_ptr,     // []
                                 float* __restrict__ ties_top_partial,  // [splits, m]
                                 int n) {
  const float top = fg::load(top_ptr);
  fg::Chains<float> ties_top_chains;

  // The blocks take turns; each thread owns 8 consecutive elements at a time.
  const int first = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 8 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<8>(input_ptr + at);
    float ties_top_part = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const bool same_input_top = input == top;
      ties_top_part += same_input_top ? 1.0f : 0.0f;
    }
    ties_top_chains.add(ties_top_part);
  }
  const float ties_top = fg::block_sum<256>(ties_top_chains.total());

  if (threadIdx.x == 0) {
    ties_top_partial[blockIdx.x] = ties_top;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void amax_backward_bf16_ties_top_finish(const float* ties_top_partial,     // [splits, m]
                                        float* __restrict__ ties_top_ptr,  // []
                                        int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  float ties_top = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    ties_top += ties_top_partial[piece * m + result];
  }
  ties_top = fg::block_sum<128>(ties_top);
  if (threadIdx.x > 0) return;
  fg::store(ties_top_ptr, ties_top);
}

// amax, backward                                              declared in ops/reductions.py
//   same_input_top = input == top
//   d_input = where(same_input_top, d_out / ties_top, 0 / ties_top)
// elementwise: 8 elements a thread; d_out, top, ties_top the same for all
extern "C" __global__ __launch_bounds__(256)
void amax_backward_bf16_d_input(const bf16* __restrict__ input_ptr,  // [D0, D1]
                                const bf16* __restrict__ d_out_ptr,  // []
                                const float* __restrict__ top_ptr,   // []
                                const float* ties_top_ptr,           // []
                                bf16* __restrict__ d_input_ptr,      // [D0, D1]
                                int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  const float top = fg::load(top_ptr);
  const float ties_top = fg::load(ties_top_ptr);
  fg::Vec<float, 8> d_input_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const bool same_input_top = input == top;
    d_input_v[k] = same_input_top ? d_out / ties_top : 0.0f / ties_top;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
}
