// fusegen emit addcdiv --which forward --dtype bfloat16 --shape input=512,3072 --shape tensor1=512,3072
//     --shape tensor2=512,3072
#include "fusegen.cuh"

// addcdiv, forward                                            declared in ops/pointwise.py
//   out = input + float32(value) * tensor1 / tensor2
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void addcdiv_forward_bf16(const bf16* __restrict__ input_ptr,    // [D0, D1]
                          const bf16* __restrict__ tensor1_ptr,  // [D0, D1]
                          const bf16* __restrict__ tensor2_ptr,  // [D0, D1]
                          bf16* __restrict__ out_ptr,            // [D0, D1]
                          int64_t value, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto tensor1_v = fg::load_vector<8>(tensor1_ptr + at);
  const auto tensor2_v = fg::load_vector<8>(tensor2_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float tensor1 = tensor1_v[k];
    const float tensor2 = tensor2_v[k];
    out_v[k] = input + float(value) * tensor1 / tensor2;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
