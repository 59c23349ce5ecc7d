// fusegen emit amin --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// amin, backward                                              declared in ops/reductions.py
//   same_input_bottom = input == bottom
//   ties_bottom = sum[d0, d1](where(same_input_bottom, 1, 0))
// whole: one pass reduces everything; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void amin_backward_f32_ties_bottom(const float* __restrict__ input_ptr,      // [D0, D1]
                                   const float* __restrict__ bottom_ptr,     // []
                                   float* __restrict__ ties_bottom_partial,  // [splits, m]
                                   int n) {
  const float bottom = fg::load(bottom_ptr);
  fg::Chains<float> ties_bottom_chains;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto input_v = fg::load_vector<4>(input_ptr + at);
    float ties_bottom_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const bool same_input_bottom = input == bottom;
      ties_bottom_part += same_input_bottom ? 1.0f : 0.0f;
    }
    ties_bottom_chains.add(ties_bottom_part);
  }
  const float ties_bottom = fg::block_sum<256>(ties_bottom_chains.total());

  if (threadIdx.x == 0) {
    ties_bottom_partial[blockIdx.x] = ties_bottom;
  }
}

// The pieces of each result, combined in a fixed order by a block.
extern "C" __global__ __launch_bounds__(128)
void amin_backward_f32_ties_bottom_finish(const float* ties_bottom_partial,     // [splits, m]
                                          float* __restrict__ ties_bottom_ptr,  // []
                                          int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = blockIdx.x;
  float ties_bottom = 0;
  for (int piece = threadIdx.x; piece < splits; piece += 128) {
    ties_bottom += ties_bottom_partial[piece * m + result];
  }
  ties_bottom = fg::block_sum<128>(ties_bottom);
  if (threadIdx.x > 0) return;
  fg::store(ties_bottom_ptr, ties_bottom);
}

// amin, backward                                              declared in ops/reductions.py
//   same_input_bottom = input == bottom
//   d_input = where(same_input_bottom, d_out / ties_bottom, 0 / ties_bottom)
// elementwise: 4 elements a thread; d_out, bottom, ties_bottom the same for all
extern "C" __global__ __launch_bounds__(256)
void amin_backward_f32_d_input(const float* __restrict__ input_ptr,   // [D0, D1]
                               const float* __restrict__ d_out_ptr,   // []
                               const float* __restrict__ bottom_ptr,  // []
                               const float* ties_bottom_ptr,          // []
                               float* __restrict__ d_input_ptr,       // [D0, D1]
                               int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  const float bottom = fg::load(bottom_ptr);
  const float ties_bottom = fg::load(ties_bottom_ptr);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const bool same_input_bottom = input == bottom;
    d_input_v[k] = same_input_bottom ? d_out / ties_bottom : 0.0f / ties_bottom;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
