// fusegen emit vector_norm --which forward --dtype float32 --shape x=512,3072
#include "fusegen.cuh"

// vector_norm, forward                                        declared in ops/distances.py
//   total = sum[d1](x * x)
//   same_total = total == 0
//   out = where(same_total, total, sqrt(where(same_total, 1, total)))
// row: a block sums over D1, along the fast axis
extern "C" __global__ __launch_bounds__(256, 4)
void vector_norm_forward_f32(const float* __restrict__ x_ptr,  // [D0, D1]
                             float* __restrict__ out_ptr,      // [D0]
                             int m, int n, int x_stride0) {
  // A block owns one result and its n elements.
  const int result = blockIdx.x;
  const int j0 = result;

  float total = 0;
  for (int at = 4 * threadIdx.x; at < n; at += 1024) {
    const int j1 = at;
    const auto x_v = fg::load_vector<4>(x_ptr + j0 * x_stride0 + j1);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float x = x_v[k];
      total += x * x;
    }
  }
  total = fg::block_sum<256>(total);

  if (threadIdx.x == 0) {
    const bool same_total = total == 0.0f;
    fg::store(out_ptr + j0, same_total ? total : sqrtf(same_total ? 1.0f : total));
  }
}
