// fusegen emit conv1x1 --which forward --dtype float32 --shape input=8,64,56,56 --shape weight=128,64,1,1
//     --shape bias=128
#include "fusegen.cuh"

// conv1x1, forward: without a kernel
//   product[D0, D1, D2, D3] = input(d4 -> d6) @ weight(d5 -> d6) over [D6]

// conv1x1, forward epilogue                                   declared in ops/linear.py
//   last = product + bias
// elementwise: 4 elements a thread; bias broadcast
extern "C" __global__ __launch_bounds__(256)
void conv1x1_forward_epilogue_f32(const float* __restrict__ bias_ptr,  // [D1]
                                  const float* product_ptr,            // [D0, D1, D2, D3]
                                  float* __restrict__ last_ptr,        // [D0, D1, D2, D3]
                                  int n, fg::Divisor n1, fg::Divisor n2) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);

  const float bias = fg::load(bias_ptr + j1);
  const auto product_v = fg::load_vector<4>(product_ptr + at);
  fg::Vec<float, 4> last_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float product = product_v[k];
    last_v[k] = product + bias;
  }
  fg::store_vector<4>(last_ptr + at, last_v);
}
