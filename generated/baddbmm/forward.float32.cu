// fusegen emit baddbmm --which forward --dtype float32 --shape input=8,56,48 --shape batch1=8,56,64
//     --shape batch2=8,64,48
#include "fusegen.cuh"

// baddbmm, forward: without a kernel
//   product[D0, D1, D2] = batch1(d3 -> d5) @ batch2(d4 -> d5) over [D5]

// baddbmm, forward epilogue                                   declared in ops/products.py
//   out = input + product
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void baddbmm_forward_epilogue_f32(const float* __restrict__ input_ptr,  // [D0, D1, D2]
                                  const float* product_ptr,             // [D0, D1, D2]
                                  float* __restrict__ out_ptr,          // [D0, D1, D2]
                                  int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto product_v = fg::load_vector<4>(product_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float product = product_v[k];
    out_v[k] = input + product;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
