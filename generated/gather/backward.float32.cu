// fusegen emit gather --which backward --dtype float32 --dtype index=int64 --shape input=512,3072
//     --shape index=512,64 --arg dim=-1
#include "fusegen.cuh"

// gather, backward: without a kernel
//   d_input[D0, D2] = d_out added at chosen_index along D2, over [D1]

// gather, backward prologue                                   declared in ops/indexing.py
//   chosen_index = where(index < 0, index + D2, index)
// elementwise: 2 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void gather_backward_prologue_i64(const int64_t* __restrict__ the_index_ptr,  // [D0, D1]
                                  int64_t* __restrict__ chosen_index_ptr,     // [D0, D1]
                                  int64_t D2, int n) {
  // Locate: each thread owns 2 consecutive elements.
  const int at = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto the_index_v = fg::load_vector<2>(the_index_ptr + at);
  fg::Vec<int64_t, 2> chosen_index_v;

#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int64_t index_ = the_index_v[k];
    chosen_index_v[k] = index_ < 0 ? index_ + D2 : index_;
  }
  fg::store_vector<2>(chosen_index_ptr + at, chosen_index_v);
}
