// fusegen emit linear_gru_cell --which backward --dtype bfloat16 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, backward: without a kernel
//   d_weight_hh[D5, D3, D6] = hidden(d0 -> d11, d3 -> d6) @ sum(d0 -> d11) over [D11]
//   d_input[D0, D2] = sum_2(d1 -> d12, d3 -> d13) @ weight_ih(d1 -> d12, d3 -> d13, d4 -> d2) over [D12, D13]
//   d_weight_ih[D1, D3, D4] = input(d0 -> d14, d2 -> d4) @ sum_2(d0 -> d14) over [D14]
//   d_product_2[D0, D3] = sum(d3 -> d9, d5 -> d10) @ weight_hh(d3 -> d9, d5 -> d10, d6 -> d3) over [D9, D10]

// linear_gru_cell, backward prologue                          declared in ops/cells.py
//   r = sigmoid(i_r + h_r)
//   n_ = tanh(i_n + r * h_n)
//   power_n = n_^2
//   diff = 1 - power_n
//   prod_r = diff * r
//   z = sigmoid(i_z + h_z)
//   prod_d_out = d_out * ((1 - z) * (hidden - n_) * z)
//   chosen = where(index(d5) == 2, d_out * (prod_r - prod_r * z), 0)
//   prod_r_2 = h_n * (1 - r) * diff * r
//   prod_d_out_2 = d_out * (prod_r_2 - prod_r_2 * z)
//   sum_2 = chosen + where(index(d5) == 1, prod_d_out, 0)
//   sum = sum_2 + where(index(d5) == 0, prod_d_out_2, 0)
// elementwise: 8 elements a thread; hidden, d_out, i_r, i_z, i_n, h_r, h_z, h_n gathered element by element
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_backward_prologue_bf16_sum(const bf16* __restrict__ hidden_ptr,  // [D0, 1, D3]
                                                const bf16* __restrict__ d_out_ptr,   // [D0, D3]
                                                const float* __restrict__ i_r_ptr,    // [D0, D3]
                                                const float* __restrict__ i_z_ptr,    // [D0, D3]
                                                const float* __restrict__ i_n_ptr,    // [D0, D3]
                                                const float* __restrict__ h_r_ptr,    // [D0, D3]
                                                const float* __restrict__ h_z_ptr,    // [D0, D3]
                                                const float* __restrict__ h_n_ptr,    // [D0, D3]
                                                bf16* __restrict__ sum_ptr,           // [D0, D3, D5]
                                                int n, fg::Divisor n1) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  int j1 = fg::take(rest, n1);
  int j0 = rest;
  fg::Vec<float, 8> sum_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float hidden = fg::load(hidden_ptr + j0);
    const float d_out = fg::load(d_out_ptr + j0);
    const float i_r = fg::load(i_r_ptr + j0);
    const float i_z = fg::load(i_z_ptr + j0);
    const float i_n = fg::load(i_n_ptr + j0);
    const float h_r = fg::load(h_r_ptr + j0);
    const float h_z = fg::load(h_z_ptr + j0);
    const float h_n = fg::load(h_n_ptr + j0);
    const int64_t index_d5 = j1;
    const float r = fg::fast_sigmoid(i_r + h_r);
    const float n_ = fg::fast_tanh(i_n + r * h_n);
    const float power_n = n_ * n_;
    const float diff = 1.0f - power_n;
    const float prod_r = diff * r;
    const float z = fg::fast_sigmoid(i_z + h_z);
    const float prod_d_out = d_out * ((1.0f - z) * (hidden - n_) * z);
    const float chosen = index_d5 == 2 ? d_out * (prod_r - prod_r * z) : 0.0f;
    const float prod_r_2 = h_n * (1.0f - r) * diff * r;
    const float prod_d_out_2 = d_out * (prod_r_2 - prod_r_2 * z);
    const float sum_2 = chosen + (index_d5 == 1 ? prod_d_out : 0.0f);
    sum_v[k] = sum_2 + (index_d5 == 0 ? prod_d_out_2 : 0.0f);
    j0 += fg::advance(j1, n1, true);
  }
  fg::store_vector<8>(sum_ptr + at, sum_v);
}

// linear_gru_cell, backward prologue                          declared in ops/cells.py
//   r = sigmoid(i_r + h_r)
//   n_ = tanh(i_n + r * h_n)
//   power_n = n_^2
//   z = sigmoid(i_z + h_z)
//   prod_d_out = d_out * ((1 - z) * (hidden - n_) * z)
//   chosen = where(index(d1) == 2, d_out * (1 + (power_n - 1) * z - power_n), 0)
//   diff = 1 - power_n
//   prod_r_2 = h_n * (1 - r) * diff * r
//   prod_d_out_2 = d_out * (prod_r_2 - prod_r_2 * z)
//   sum = chosen + where(index(d1) == 1, prod_d_out, 0)
//   sum_2 = sum + where(index(d1) == 0, prod_d_out_2, 0)
// elementwise: 8 elements a thread; hidden, d_out, i_r, i_z, i_n, h_r, h_z, h_n broadcast
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_backward_prologue_bf16_sum_2(const bf16* __restrict__ hidden_ptr,  // [D0, 1, D3]
                                                  const bf16* __restrict__ d_out_ptr,   // [D0, D3]
                                                  const float* __restrict__ i_r_ptr,    // [D0, D3]
                                                  const float* __restrict__ i_z_ptr,    // [D0, D3]
                                                  const float* __restrict__ i_n_ptr,    // [D0, D3]
                                                  const float* __restrict__ h_r_ptr,    // [D0, D3]
                                                  const float* __restrict__ h_z_ptr,    // [D0, D3]
                                                  const float* __restrict__ h_n_ptr,    // [D0, D3]
                                                  bf16* __restrict__ sum_2_ptr,         // [D0, D1, D3]
                                                  int n, fg::Divisor n1, fg::Divisor n2, int hidden_stride0,
                                                  int d_out_stride0, int i_r_stride0, int i_z_stride0,
                                                  int i_n_stride0, int h_r_stride0, int h_z_stride0, int h_n_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j2 = fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<8>(hidden_ptr + j0 * hidden_stride0 + j2);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + j0 * d_out_stride0 + j2);
  const auto i_r_v = fg::load_vector<8>(i_r_ptr + j0 * i_r_stride0 + j2);
  const auto i_z_v = fg::load_vector<8>(i_z_ptr + j0 * i_z_stride0 + j2);
  const auto i_n_v = fg::load_vector<8>(i_n_ptr + j0 * i_n_stride0 + j2);
  const auto h_r_v = fg::load_vector<8>(h_r_ptr + j0 * h_r_stride0 + j2);
  const auto h_z_v = fg::load_vector<8>(h_z_ptr + j0 * h_z_stride0 + j2);
  const auto h_n_v = fg::load_vector<8>(h_n_ptr + j0 * h_n_stride0 + j2);
  fg::Vec<float, 8> sum_2_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float hidden = hidden_v[k];
    const float d_out = d_out_v[k];
    const float i_r = i_r_v[k];
    const float i_z = i_z_v[k];
    const float i_n = i_n_v[k];
    const float h_r = h_r_v[k];
    const float h_z = h_z_v[k];
    const float h_n = h_n_v[k];
    const int64_t index_d1 = j1;
    const float r = fg::fast_sigmoid(i_r + h_r);
    const float n_ = fg::fast_tanh(i_n + r * h_n);
    const float power_n = n_ * n_;
    const float z = fg::fast_sigmoid(i_z + h_z);
    const float prod_d_out = d_out * ((1.0f - z) * (hidden - n_) * z);
    const float chosen = index_d1 == 2 ? d_out * (1.0f + (power_n - 1.0f) * z - power_n) : 0.0f;
    const float diff = 1.0f - power_n;
    const float prod_r_2 = h_n * (1.0f - r) * diff * r;
    const float prod_d_out_2 = d_out * (prod_r_2 - prod_r_2 * z);
    const float sum = chosen + (index_d1 == 1 ? prod_d_out : 0.0f);
    sum_2_v[k] = sum + (index_d1 == 0 ? prod_d_out_2 : 0.0f);
  }
  fg::store_vector<8>(sum_2_ptr + at, sum_2_v);
}

// linear_gru_cell, backward epilogue                          declared in ops/cells.py
//   z = sigmoid(i_z + h_z)
//   d_hidden = d_out * z + d_product_2
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_backward_epilogue_bf16(const bf16* __restrict__ d_out_ptr,  // [D0, D3]
                                            const float* __restrict__ i_z_ptr,   // [D0, D3]
                                            const float* __restrict__ h_z_ptr,   // [D0, D3]
                                            const bf16* d_product_2_ptr,         // [D0, D3]
                                            bf16* __restrict__ d_hidden_ptr,     // [D0, 1, D3]
                                            int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  const auto i_z_v = fg::load_vector<8>(i_z_ptr + at);
  const auto h_z_v = fg::load_vector<8>(h_z_ptr + at);
  const auto d_product_2_v = fg::load_vector<8>(d_product_2_ptr + at);
  fg::Vec<float, 8> d_hidden_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float d_out = d_out_v[k];
    const float i_z = i_z_v[k];
    const float h_z = h_z_v[k];
    const float d_product_2 = d_product_2_v[k];
    const float z = fg::fast_sigmoid(i_z + h_z);
    d_hidden_v[k] = d_out * z + d_product_2;
  }
  fg::store_vector<8>(d_hidden_ptr + at, d_hidden_v);
}
