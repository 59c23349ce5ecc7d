// fusegen emit linear --which forward --dtype float32 --shape input=512,768 --shape weight=3072,768 --shape bias=3072
#include "fusegen.cuh"

// linear, forward: without a kernel
//   product[D0, D1] = input(d2 -> d4) @ weight(d3 -> d4) over [D4]

// linear, forward epilogue                                    declared in ops/linear.py
//   out = product + bias
// elementwise: 4 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void linear_forward_epilogue_f32(const float* __restrict__ bias_ptr,  // [D1]
                                 const float* product_ptr,            // [D0, D1]
                                 float* __restrict__ out_ptr,         // [D0, D1]
                                 int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto bias_v = fg::load_vector<4>(bias_ptr + j1);
  const auto product_v = fg::load_vector<4>(product_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float bias = bias_v[k];
    const float product = product_v[k];
    out_v[k] = product + bias;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
