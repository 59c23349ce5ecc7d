// fusegen emit vector_norm --which forward --dtype float32 --shape x=512,3072
#include "fusegen.cuh"

// vector_norm, forward                                        declared in ops/distances.py
//   total = sum[d1](x * x)
//   same_total = total == 0
//   out = where(same_total, total, sqrt(where(same_total, 1, total)))
// rows: 192 threads a row over D1, which stays in registers: read once
extern "C" __global__ __launch_bounds__(192, 5)
void vector_norm_forward_f32(const float* __restrict__ x_ptr,  // [D0, D1]
                             float* __restrict__ out_ptr,      // [D0]
                             int m, int n, int x_stride0) {
  const int row = int(blockIdx.x);
  fg::Raw<float, 4> x_row[4];
  const int j0 = row;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    const int j1 = at;
    x_row[part] = fg::load_raw<4>(x_ptr + j0 * x_stride0 + j1);
  }

  float total = 0;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    const auto x_v = fg::widen(x_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x = x_v[k];
      total += x * x;
    }
  }
  fg::row_sum<192, 1, 0>(total);
  const bool same_total = total == 0.0f;

  if (threadIdx.x == 0) {
    fg::store(out_ptr + j0, same_total ? total : sqrtf(same_total ? 1.0f : total));
  }
}
