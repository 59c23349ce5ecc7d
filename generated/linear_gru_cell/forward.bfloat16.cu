// fusegen emit linear_gru_cell --which forward --dtype bfloat16 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, forward: without a kernel
//   product[D0, D1N3, D2] = input(d3 -> d6) @ weight_ih(d4 -> d6) over [D6]
//   product_2[D0, D1N3, D2] = hidden(d2 -> d7) @ weight_hh(d5 -> d7) over [D7]

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   prod_product_2_at_3 = sigmoid(product_at + product_2_at) * product_2_at_3
//   tanh_value = tanh(product_at_3 + prod_product_2_at_3)
//   sigmoid_value = sigmoid(product_at_2 + product_2_at_2)
//   out = tanh_value + sigmoid_value * (hidden - tanh_value)
// elementwise: 8 elements a thread; product_at, product_at_2, product_at_3, product_2_at, product_2_at_2,
//     product_2_at_3 in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_forward_epilogue_bf16(const bf16* __restrict__ hidden_ptr,  // [D0, D2]
                                           const bf16* product_ptr,              // [D0, D1N3, D2]
                                           const bf16* product_2_ptr,            // [D0, D1N3, D2]
                                           bf16* __restrict__ out_ptr,           // [D0, D2]
                                           int64_t product_step1, int64_t product_2_step1, int n, fg::Divisor n1,
                                           int product_stride0, int product_2_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<8>(hidden_ptr + at);
  const auto product_at_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1);
  const auto product_at_2_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1 + product_step1);
  const auto product_at_3_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1 + 2 * product_step1);
  const auto product_2_at_v = fg::load_vector<8>(product_2_ptr + j0 * product_2_stride0 + j1);
  const auto product_2_at_2_v = fg::load_vector<8>(product_2_ptr + j0 * product_2_stride0 + j1 + product_2_step1);
  const int product_2_at_3_at = j0 * product_2_stride0 + j1;
  const auto product_2_at_3_v = fg::load_vector<8>(product_2_ptr + product_2_at_3_at + 2 * product_2_step1);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float hidden = hidden_v[k];
    const float product_at = product_at_v[k];
    const float product_at_2 = product_at_2_v[k];
    const float product_at_3 = product_at_3_v[k];
    const float product_2_at = product_2_at_v[k];
    const float product_2_at_2 = product_2_at_2_v[k];
    const float product_2_at_3 = product_2_at_3_v[k];
    const float prod_product_2_at_3 = fg::fast_sigmoid(product_at + product_2_at) * product_2_at_3;
    const float tanh_value = fg::fast_tanh(product_at_3 + prod_product_2_at_3);
    const float sigmoid_value = fg::fast_sigmoid(product_at_2 + product_2_at_2);
    out_v[k] = tanh_value + sigmoid_value * (hidden - tanh_value);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
