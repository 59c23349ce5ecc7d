// fusegen emit prelu --which forward --dtype bfloat16 --shape input=512,3072 --shape weight=3072
#include "fusegen.cuh"

// prelu, forward                                              declared in ops/activations.py
//   out = where(input > 0, input, weight * input)
// elementwise: 8 elements a thread; weight broadcast
extern "C" __global__ __launch_bounds__(256)
void prelu_forward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                        const bf16* __restrict__ weight_ptr,  // [D1]
                        bf16* __restrict__ out_ptr,           // [D0, D1]
                        int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto weight_v = fg::load_vector<8>(weight_ptr + j1);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float weight = weight_v[k];
    out_v[k] = input > 0.0f ? input : weight * input;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
