// fusegen emit scatter --which backward --dtype bfloat16 --dtype index=int64 --shape input=512,3072
//     --shape index=64,3072 --shape src=64,3072 --arg dim=0
#include "fusegen.cuh"

// scatter, backward: without a kernel
//   d_src[D1, D2] = factor_2 added at factor along D1, over [D0]

// scatter, backward prologue                                  declared in ops/indexing.py
//   above_top = top >= 0
//   d_input = where(above_top, 0, d_out)
//   factor = where(top < 0, top + D1, top)
//   factor_2 = where(above_top, d_out, 0)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void scatter_backward_prologue_bf16(const bf16* __restrict__ d_out_ptr,   // [D0, D2]
                                    const int64_t* __restrict__ top_ptr,  // [D0, D2]
                                    bf16* __restrict__ d_input_ptr,       // [D0, D2]
                                    int64_t* __restrict__ factor_ptr,     // [D0, D2]
                                    float* __restrict__ factor_2_ptr,     // [D0, D2]
                                    int64_t D1, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  const auto top_v = fg::load_vector<8>(top_ptr + at);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<int64_t, 8> factor_v;
  fg::Vec<float, 8> factor_2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float d_out = d_out_v[k];
    const int64_t top = top_v[k];
    const bool above_top = top >= 0;
    d_input_v[k] = above_top ? 0.0f : d_out;
    factor_v[k] = top < 0 ? top + D1 : top;
    factor_2_v[k] = above_top ? d_out : 0.0f;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(factor_ptr + at, factor_v);
  fg::store_vector<8>(factor_2_ptr + at, factor_2_v);
}
