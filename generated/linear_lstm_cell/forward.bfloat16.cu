// fusegen emit linear_lstm_cell --which forward --dtype bfloat16 --shape input=512,1024 --shape hidden=512,768
//     --shape cell=512,768 --shape weight_ih=3072,1024 --shape weight_hh=3072,768
#include "fusegen.cuh"

// linear_lstm_cell, forward: without a kernel
//   product[D0, D1, D4] = input(d2 -> d7) @ weight_ih(d5 -> d7) over [D7]
//   product_2[D0, D1, D4] = hidden(d3 -> d8) @ weight_hh(d6 -> d8) over [D8]

// linear_lstm_cell, forward epilogue                          declared in ops/cells.py
//   sum = product + product_2
//   i = sum[d1](where(index(d1) == 0, sum, 0))
//   f = sum[d1](where(index(d1) == 1, sum, 0))
//   g = sum[d1](where(index(d1) == 2, sum, 0))
//   o = sum[d1](where(index(d1) == 3, sum, 0))
//   prod = sigmoid(i) * tanh(g)
//   new_cell = sigmoid(f) * cell + prod
//   out_0 = sigmoid(o) * tanh(new_cell)
// serial: a thread a result, reduced over D1
extern "C" __global__ __launch_bounds__(256)
void linear_lstm_cell_forward_epilogue_bf16(const bf16* __restrict__ cell_ptr,  // [D0, D4]
                                            const bf16* product_ptr,            // [D0, D1, D4]
                                            const bf16* product_2_ptr,          // [D0, D1, D4]
                                            bf16* __restrict__ out_0_ptr,       // [D0, D4]
                                            bf16* __restrict__ new_cell_ptr,    // [D0, D4]
                                            int m, int n, fg::Divisor n1, int cell_stride0, int product_stride0,
                                            int product_stride2, int product_2_stride0, int product_2_stride2,
                                            int out_0_stride0, int new_cell_stride0) {
  fg::wait_for_previous_kernel();
  // A thread owns one result and adds up its elements by itself.
  const int result = int(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  float i = 0;
  float f = 0;
  float g = 0;
  float o = 0;
  for (int at = 0; at < n; ++at) {
    const int j2 = at;
    const float product = fg::load(product_ptr + j0 * product_stride0 + j1 + j2 * product_stride2);
    const float product_2 = fg::load(product_2_ptr + j0 * product_2_stride0 + j1 + j2 * product_2_stride2);
    const int64_t index_d1 = j2;
    const float sum = product + product_2;
    i += index_d1 == 0 ? sum : 0.0f;
    f += index_d1 == 1 ? sum : 0.0f;
    g += index_d1 == 2 ? sum : 0.0f;
    o += index_d1 == 3 ? sum : 0.0f;
  }

  const float cell = fg::load(cell_ptr + j0 * cell_stride0 + j1);
  const float prod = fg::fast_sigmoid(i) * fg::fast_tanh(g);
  const float new_cell = fg::fast_sigmoid(f) * cell + prod;
  fg::store(out_0_ptr + j0 * out_0_stride0 + j1, fg::fast_sigmoid(o) * fg::fast_tanh(new_cell));
  fg::store(new_cell_ptr + j0 * new_cell_stride0 + j1, new_cell);
}
