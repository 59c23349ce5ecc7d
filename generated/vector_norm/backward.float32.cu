// fusegen emit vector_norm --which backward --dtype float32 --shape x=512,3072
#include "fusegen.cuh"

// vector_norm, backward                                       declared in ops/distances.py
//   same_total = total == 0
//   d_x = x * (2 * d_out * where(same_total, 1, 0.5 / sqrt(total)))
// rows: elementwise, D1 in pieces: what a row's elements have in common is computed once for each piece
extern "C" __global__ __launch_bounds__(256, 4)
void vector_norm_backward_f32(const float* __restrict__ x_ptr,      // [D0, D1]
                              const float* __restrict__ d_out_ptr,  // [D0]
                              const float* __restrict__ total_ptr,  // [D0]
                              float* __restrict__ d_x_ptr,          // [D0, D1]
                              int m, int n, int x_stride0, int d_x_stride0) {
  // 256 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const int row = int(blockIdx.x);
  fg::Raw<float, 4> x_row[3];
  const int j0 = row;
  const float d_out = fg::load(d_out_ptr + j0);
  const float total = fg::load(total_ptr + j0);
#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    x_row[part] = fg::load_raw<4>(x_ptr + j0 * x_stride0 + j1);
  }
  const bool same_total = total == 0.0f;

#pragma unroll
  for (int part = 0; part < 3; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto x_v = fg::widen(x_row[part]);
    fg::Vec<float, 4> d_x_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x = x_v[k];
      d_x_v[k] = x * (2.0f * d_out * (same_total ? 1.0f : 0.5f / sqrtf(total)));
    }
    fg::store_vector<4>(d_x_ptr + (j0 * d_x_stride0 + j1), d_x_v);
  }
}
