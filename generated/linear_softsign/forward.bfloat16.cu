// fusegen emit linear_softsign --which forward --dtype bfloat16 --shape input=512,768 --shape weight=3072,768
//     --shape bias=3072
#include "fusegen.cuh"

template <typename T> FG_DEVICE T softsign(T x) { return x / (T(1) + fg::abs(x)); }

// linear_softsign, forward epilogue                           declared in ops/linear.py
//   input_2 = product + bias
//   out = softsign(input_2)
// elementwise: 8 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void linear_softsign_forward_epilogue_bf16(const bf16* __restrict__ bias_ptr,  // [D1]
                                           const bf16* product_ptr,            // [D0, D1]
                                           bf16* __restrict__ out_ptr,         // [D0, D1]
                                           int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto bias_v = fg::load_vector<8>(bias_ptr + j1);
  const auto product_v = fg::load_vector<8>(product_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float bias = bias_v[k];
    const float product = product_v[k];
    const float input_2 = product + bias;
    out_v[k] = softsign(input_2);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
