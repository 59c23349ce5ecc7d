// fusegen emit addcmul --which forward --dtype float32 --shape input=512,3072 --shape tensor1=512,3072
//     --shape tensor2=512,3072
#include "fusegen.cuh"

// addcmul, forward                                            declared in ops/pointwise.py
//   out = input + float32(value) * tensor1 * tensor2
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void addcmul_forward_f32(const float* __restrict__ input_ptr,    // [D0, D1]
                         const float* __restrict__ tensor1_ptr,  // [D0, D1]
                         const float* __restrict__ tensor2_ptr,  // [D0, D1]
                         float* __restrict__ out_ptr,            // [D0, D1]
                         int64_t value, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto tensor1_v = fg::load_vector<4>(tensor1_ptr + at);
  const auto tensor2_v = fg::load_vector<4>(tensor2_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float tensor1 = tensor1_v[k];
    const float tensor2 = tensor2_v[k];
    out_v[k] = input + float(value) * tensor1 * tensor2;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
