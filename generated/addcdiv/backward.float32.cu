// fusegen emit addcdiv --which backward --dtype float32 --shape input=512,3072 --shape tensor1=512,3072
//     --shape tensor2=512,3072
#include "fusegen.cuh"

// addcdiv, backward: without a kernel
//   d_input = d_out, the same tensor

// addcdiv, backward                                           declared in ops/pointwise.py
//   d_tensor1 = d_out * (float32(value) / tensor2)
//   d_tensor2 = -(d_out * (float32(value) * tensor1 / tensor2 / tensor2))
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void addcdiv_backward_f32(const float* __restrict__ tensor1_ptr,  // [D0, D1]
                          const float* __restrict__ tensor2_ptr,  // [D0, D1]
                          const float* __restrict__ d_out_ptr,    // [D0, D1]
                          float* __restrict__ d_tensor1_ptr,      // [D0, D1]
                          float* __restrict__ d_tensor2_ptr,      // [D0, D1]
                          int64_t value, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto tensor1_v = fg::load_vector<4>(tensor1_ptr + at);
  const auto tensor2_v = fg::load_vector<4>(tensor2_ptr + at);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  fg::Vec<float, 4> d_tensor1_v;
  fg::Vec<float, 4> d_tensor2_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float tensor1 = tensor1_v[k];
    const float tensor2 = tensor2_v[k];
    const float d_out = d_out_v[k];
    d_tensor1_v[k] = d_out * (float(value) / tensor2);
    d_tensor2_v[k] = -(d_out * (float(value) * tensor1 / tensor2 / tensor2));
  }
  fg::store_vector<4>(d_tensor1_ptr + at, d_tensor1_v);
  fg::store_vector<4>(d_tensor2_ptr + at, d_tensor2_v);
}
