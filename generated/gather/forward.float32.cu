// fusegen emit gather --which forward --dtype float32 --dtype index=int64 --shape input=512,3072 --shape index=512,64
//     --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_places.cuh"

// gather, forward                                             declared in ops/indexing.py
//   out = input_at
// elementwise: 4 elements a thread; input_at gathered element by element
extern "C" __global__ __launch_bounds__(256)
void gather_forward_f32(const int64_t* __restrict__ the_index_ptr,  // [D0, D1]
                        const float* __restrict__ input_ptr,        // [D0, D2]
                        float* __restrict__ out_ptr,                // [D0, D1]
                        int64_t D2, int n, fg::Divisor n1, int the_index_d0_d1_stride0, int input_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto the_index_v = fg::load_vector<4>(the_index_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int64_t index_ = the_index_v[k];
    const int64_t index_d0_d1 = j0 * the_index_d0_d1_stride0 + j1 + k;
    const int64_t input_at_place2 = fg::within(index_ < 0 ? index_ + D2 : index_, D2, index_d0_d1, 0);
    const float input_at = fg::gather(input_ptr + j0 * input_stride0, input_at_place2, D2, 1);
    out_v[k] = input_at;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
