// fusegen emit linear_gru_cell --which backward --dtype bfloat16 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, backward: without a kernel
//   d_weight_hh[D1N3, D2, D5] = hidden(d0 -> d10, d2 -> d5) @ sum_2(d0 -> d10) over [D10]
//   d_input[D0, D3] = sum_3(d1n3 -> d11, d2 -> d12) @ weight_ih(d1n3 -> d11, d2 -> d12, d4 -> d3) over [D11, D12]
//   d_weight_ih[D1N3, D2, D4] = input(d0 -> d13, d3 -> d4) @ sum_3(d0 -> d13) over [D13]
//   d_product_2[D0, D2] = sum_2(d1n3 -> d8, d2 -> d9) @ weight_hh(d1n3 -> d8, d2 -> d9, d5 -> d2) over [D8, D9]

// linear_gru_cell, backward prologue                          declared in ops/cells.py
//   sigmoid_value = sigmoid(product_at + product_2_at)
//   tanh_value = tanh(product_at_3 + sigmoid_value * product_2_at_3)
//   power = tanh_value^2
//   diff = 1 - power
//   prod = product_2_at_3 * (1 - sigmoid_value) * diff * sigmoid_value
//   sigmoid_value_2 = sigmoid(product_at_2 + product_2_at_2)
//   sum_2_0 = d_out * (prod - prod * sigmoid_value_2)
//   prod_2 = (1 - sigmoid_value_2) * (hidden - tanh_value) * sigmoid_value_2
//   sum_2_1 = d_out * prod_2
//   prod_3 = diff * sigmoid_value
//   sum_2_2 = d_out * (prod_3 - prod_3 * sigmoid_value_2)
//   sum_3_0 = sum_2_0
//   sum_3_1 = sum_2_1
//   sum_3_2 = d_out * (1 + (power - 1) * sigmoid_value_2 - power)
// elementwise: 8 elements a thread; product_at, product_at_2, product_at_3, product_2_at, product_2_at_2,
//     product_2_at_3, sum_2_0, sum_2_1, sum_2_2, sum_3_0, sum_3_1, sum_3_2 in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_backward_prologue_bf16(const bf16* __restrict__ hidden_ptr,     // [D0, D2]
                                            const bf16* __restrict__ d_out_ptr,      // [D0, D2]
                                            const bf16* __restrict__ product_ptr,    // [D0, D1N3, D2]
                                            const bf16* __restrict__ product_2_ptr,  // [D0, D1N3, D2]
                                            bf16* __restrict__ sum_2_0_ptr,          // [D0, 1, D2]
                                            bf16* __restrict__ sum_2_1_ptr,          // [D0, 1, D2]
                                            bf16* __restrict__ sum_2_2_ptr,          // [D0, 1, D2]
                                            bf16* __restrict__ sum_3_0_ptr,          // [D0, 1, D2]
                                            bf16* __restrict__ sum_3_1_ptr,          // [D0, 1, D2]
                                            bf16* __restrict__ sum_3_2_ptr,          // [D0, 1, D2]
                                            int64_t product_step1, int64_t product_2_step1, int n, fg::Divisor n1,
                                            int product_stride0, int product_2_stride0, int sum_2_0_stride0,
                                            int sum_2_1_stride0, int sum_2_2_stride0, int sum_3_0_stride0,
                                            int sum_3_1_stride0, int sum_3_2_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<8>(hidden_ptr + at);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  const auto product_at_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1);
  const auto product_at_2_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1 + product_step1);
  const auto product_at_3_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1 + 2 * product_step1);
  const auto product_2_at_v = fg::load_vector<8>(product_2_ptr + j0 * product_2_stride0 + j1);
  const auto product_2_at_2_v = fg::load_vector<8>(product_2_ptr + j0 * product_2_stride0 + j1 + product_2_step1);
  const int product_2_at_3_at = j0 * product_2_stride0 + j1;
  const auto product_2_at_3_v = fg::load_vector<8>(product_2_ptr + product_2_at_3_at + 2 * product_2_step1);
  fg::Vec<float, 8> sum_2_0_v;
  fg::Vec<float, 8> sum_2_1_v;
  fg::Vec<float, 8> sum_2_2_v;
  fg::Vec<float, 8> sum_3_0_v;
  fg::Vec<float, 8> sum_3_1_v;
  fg::Vec<float, 8> sum_3_2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float hidden = hidden_v[k];
    const float d_out = d_out_v[k];
    const float product_at = product_at_v[k];
    const float product_at_2 = product_at_2_v[k];
    const float product_at_3 = product_at_3_v[k];
    const float product_2_at = product_2_at_v[k];
    const float product_2_at_2 = product_2_at_2_v[k];
    const float product_2_at_3 = product_2_at_3_v[k];
    const float sigmoid_value = fg::fast_sigmoid(product_at + product_2_at);
    const float tanh_value = fg::fast_tanh(product_at_3 + sigmoid_value * product_2_at_3);
    const float power = tanh_value * tanh_value;
    const float diff = 1.0f - power;
    const float prod = product_2_at_3 * (1.0f - sigmoid_value) * diff * sigmoid_value;
    const float sigmoid_value_2 = fg::fast_sigmoid(product_at_2 + product_2_at_2);
    const float sum_2_0 = d_out * (prod - prod * sigmoid_value_2);
    const float prod_2 = (1.0f - sigmoid_value_2) * (hidden - tanh_value) * sigmoid_value_2;
    const float sum_2_1 = d_out * prod_2;
    const float prod_3 = diff * sigmoid_value;
    sum_2_0_v[k] = sum_2_0;
    sum_2_1_v[k] = sum_2_1;
    sum_2_2_v[k] = d_out * (prod_3 - prod_3 * sigmoid_value_2);
    sum_3_0_v[k] = sum_2_0;
    sum_3_1_v[k] = sum_2_1;
    sum_3_2_v[k] = d_out * (1.0f + (power - 1.0f) * sigmoid_value_2 - power);
  }
  fg::store_vector<8>(sum_2_0_ptr + (j0 * sum_2_0_stride0 + j1), sum_2_0_v);
  fg::store_vector<8>(sum_2_1_ptr + (j0 * sum_2_1_stride0 + j1), sum_2_1_v);
  fg::store_vector<8>(sum_2_2_ptr + (j0 * sum_2_2_stride0 + j1), sum_2_2_v);
  fg::store_vector<8>(sum_3_0_ptr + (j0 * sum_3_0_stride0 + j1), sum_3_0_v);
  fg::store_vector<8>(sum_3_1_ptr + (j0 * sum_3_1_stride0 + j1), sum_3_1_v);
  fg::store_vector<8>(sum_3_2_ptr + (j0 * sum_3_2_stride0 + j1), sum_3_2_v);
}

// linear_gru_cell, backward epilogue                          declared in ops/cells.py
//   d_hidden = d_out * sigmoid(product_at + product_2_at) + d_product_2
// elementwise: 8 elements a thread; product_at, product_2_at in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_backward_epilogue_bf16(const bf16* __restrict__ d_out_ptr,      // [D0, D2]
                                            const bf16* d_product_2_ptr,             // [D0, D2]
                                            const bf16* __restrict__ product_ptr,    // [D0, D1N3, D2]
                                            const bf16* __restrict__ product_2_ptr,  // [D0, D1N3, D2]
                                            bf16* __restrict__ d_hidden_ptr,         // [D0, D2]
                                            int64_t product_step1, int64_t product_2_step1, int n, fg::Divisor n1,
                                            int product_stride0, int product_2_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  const auto d_product_2_v = fg::load_vector<8>(d_product_2_ptr + at);
  const auto product_at_v = fg::load_vector<8>(product_ptr + j0 * product_stride0 + j1 + product_step1);
  const auto product_2_at_v = fg::load_vector<8>(product_2_ptr + j0 * product_2_stride0 + j1 + product_2_step1);
  fg::Vec<float, 8> d_hidden_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float d_out = d_out_v[k];
    const float d_product_2 = d_product_2_v[k];
    const float product_at = product_at_v[k];
    const float product_2_at = product_2_at_v[k];
    d_hidden_v[k] = d_out * fg::fast_sigmoid(product_at + product_2_at) + d_product_2;
  }
  fg::store_vector<8>(d_hidden_ptr + at, d_hidden_v);
}
