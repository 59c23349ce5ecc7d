// fusegen emit gather --which forward --dtype bfloat16 --dtype index=int64 --shape input=512,3072
//     --shape index=512,64 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_places.cuh"

// gather, forward                                             declared in ops/indexing.py
//   out = input_at
// elementwise: one element a thread; nothing here lies side by side in memory
extern "C" __global__ __launch_bounds__(256)
void gather_forward_bf16(const int64_t* __restrict__ the_index_ptr,  // [D0, D1]
                         const bf16* __restrict__ input_ptr,         // [D0, D2]
                         bf16* __restrict__ out_ptr,                 // [D0, D1]
                         int64_t D2, int n, fg::Divisor n1, int the_index_d0_d1_stride0, int input_stride0) {
  const int at = int(blockIdx.x) * 256 + threadIdx.x;
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const int64_t index_ = fg::load(the_index_ptr + at);
  const int64_t index_d0_d1 = j0 * the_index_d0_d1_stride0 + j1;
  const int64_t input_at_place2 = fg::within(index_ < 0 ? index_ + D2 : index_, D2, index_d0_d1, 0);
  const float input_at = fg::gather(input_ptr + j0 * input_stride0, input_at_place2, D2, 1);
  fg::store(out_ptr + at, input_at);
}
