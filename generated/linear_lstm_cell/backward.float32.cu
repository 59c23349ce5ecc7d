// fusegen emit linear_lstm_cell --which backward --dtype float32 --shape input=512,1024 --shape hidden=512,768
//     --shape cell=512,768 --shape weight_ih=3072,1024 --shape weight_hh=3072,768
#include "fusegen.cuh"

// linear_lstm_cell, backward: without a kernel
//   d_hidden[D0, D3] = sum_2(d1 -> d9, d4 -> d10) @ weight_hh(d1 -> d9, d4 -> d10, d6 -> d3) over [D9, D10]
//   d_weight_hh[D1, D4, D6] = hidden(d0 -> d11, d3 -> d6) @ sum_2(d0 -> d11) over [D11]
//   d_input[D0, D2] = sum_2(d1 -> d12, d4 -> d13) @ weight_ih(d1 -> d12, d4 -> d13, d5 -> d2) over [D12, D13]
//   d_weight_ih[D1, D4, D5] = input(d0 -> d14, d2 -> d5) @ sum_2(d0 -> d14) over [D14]

// linear_lstm_cell, backward prologue                         declared in ops/cells.py
//   sigmoid_f = sigmoid(f)
//   sigmoid_i = sigmoid(i)
//   tanh_g = tanh(g)
//   prod = sigmoid_i * tanh_g
//   new_cell = sigmoid_f * cell + prod
//   tanh_new_cell = tanh(new_cell)
//   sigmoid_o = sigmoid(o)
//   prod_d_out_0_2 = d_out_0 * ((1 - tanh_new_cell^2) * sigmoid_o)
//   sum_d_new_cell = prod_d_out_0_2 + d_new_cell
//   d_cell = sum_d_new_cell * sigmoid_f
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void linear_lstm_cell_backward_prologue_f32_d_cell(const float* __restrict__ cell_ptr,        // [D0, D4]
                                                   const float* __restrict__ d_out_0_ptr,     // [D0, D4]
                                                   const float* __restrict__ d_new_cell_ptr,  // [D0, D4]
                                                   const float* __restrict__ i_ptr,           // [D0, D4]
                                                   const float* __restrict__ f_ptr,           // [D0, D4]
                                                   const float* __restrict__ g_ptr,           // [D0, D4]
                                                   const float* __restrict__ o_ptr,           // [D0, D4]
                                                   float* __restrict__ d_cell_ptr,            // [D0, D4]
                                                   int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto cell_v = fg::load_vector<4>(cell_ptr + at);
  const auto d_out_0_v = fg::load_vector<4>(d_out_0_ptr + at);
  const auto d_new_cell_v = fg::load_vector<4>(d_new_cell_ptr + at);
  const auto i_v = fg::load_vector<4>(i_ptr + at);
  const auto f_v = fg::load_vector<4>(f_ptr + at);
  const auto g_v = fg::load_vector<4>(g_ptr + at);
  const auto o_v = fg::load_vector<4>(o_ptr + at);
  fg::Vec<float, 4> d_cell_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float cell = cell_v[k];
    const float d_out_0 = d_out_0_v[k];
    const float d_new_cell = d_new_cell_v[k];
    const float i = i_v[k];
    const float f = f_v[k];
    const float g = g_v[k];
    const float o = o_v[k];
    const float sigmoid_f = fg::sigmoid(f);
    const float sigmoid_i = fg::sigmoid(i);
    const float tanh_g = tanhf(g);
    const float prod = sigmoid_i * tanh_g;
    const float new_cell = sigmoid_f * cell + prod;
    const float tanh_new_cell = tanhf(new_cell);
    const float sigmoid_o = fg::sigmoid(o);
    const float prod_d_out_0_2 = d_out_0 * ((1.0f - tanh_new_cell * tanh_new_cell) * sigmoid_o);
    const float sum_d_new_cell = prod_d_out_0_2 + d_new_cell;
    d_cell_v[k] = sum_d_new_cell * sigmoid_f;
  }
  fg::store_vector<4>(d_cell_ptr + at, d_cell_v);
}

// linear_lstm_cell, backward prologue                         declared in ops/cells.py
//   sigmoid_o = sigmoid(o)
//   sigmoid_f = sigmoid(f)
//   sigmoid_i = sigmoid(i)
//   tanh_g = tanh(g)
//   prod = sigmoid_i * tanh_g
//   new_cell = sigmoid_f * cell + prod
//   tanh_new_cell = tanh(new_cell)
//   prod_d_out_0 = d_out_0 * ((1 - sigmoid_o) * sigmoid_o * tanh_new_cell)
//   prod_d_out_0_2 = d_out_0 * ((1 - tanh_new_cell^2) * sigmoid_o)
//   sum_d_new_cell = prod_d_out_0_2 + d_new_cell
//   prod_2 = sum_d_new_cell * ((1 - tanh_g^2) * sigmoid_i)
//   prod_sum_d_new_cell = sum_d_new_cell * (cell * (1 - sigmoid_f) * sigmoid_f)
//   sum = where(index(d1) == 3, prod_d_out_0, 0) + where(index(d1) == 2, prod_2, 0)
//   prod_sum_d_new_cell_2 = sum_d_new_cell * ((1 - sigmoid_i) * sigmoid_i * tanh_g)
//   sum_3 = sum + where(index(d1) == 1, prod_sum_d_new_cell, 0)
//   sum_2 = sum_3 + where(index(d1) == 0, prod_sum_d_new_cell_2, 0)
// elementwise: 4 elements a thread; cell, d_out_0, d_new_cell, i, f, g, o broadcast
extern "C" __global__ __launch_bounds__(256)
void linear_lstm_cell_backward_prologue_f32_sum_2(const float* __restrict__ cell_ptr,        // [D0, D4]
                                                  const float* __restrict__ d_out_0_ptr,     // [D0, D4]
                                                  const float* __restrict__ d_new_cell_ptr,  // [D0, D4]
                                                  const float* __restrict__ i_ptr,           // [D0, D4]
                                                  const float* __restrict__ f_ptr,           // [D0, D4]
                                                  const float* __restrict__ g_ptr,           // [D0, D4]
                                                  const float* __restrict__ o_ptr,           // [D0, D4]
                                                  float* __restrict__ sum_2_ptr,             // [D0, D1, D4]
                                                  int n, fg::Divisor n1, fg::Divisor n2, int cell_stride0,
                                                  int d_out_0_stride0, int d_new_cell_stride0, int i_stride0,
                                                  int f_stride0, int g_stride0, int o_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j2 = fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto cell_v = fg::load_vector<4>(cell_ptr + j0 * cell_stride0 + j2);
  const auto d_out_0_v = fg::load_vector<4>(d_out_0_ptr + j0 * d_out_0_stride0 + j2);
  const auto d_new_cell_v = fg::load_vector<4>(d_new_cell_ptr + j0 * d_new_cell_stride0 + j2);
  const auto i_v = fg::load_vector<4>(i_ptr + j0 * i_stride0 + j2);
  const auto f_v = fg::load_vector<4>(f_ptr + j0 * f_stride0 + j2);
  const auto g_v = fg::load_vector<4>(g_ptr + j0 * g_stride0 + j2);
  const auto o_v = fg::load_vector<4>(o_ptr + j0 * o_stride0 + j2);
  fg::Vec<float, 4> sum_2_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float cell = cell_v[k];
    const float d_out_0 = d_out_0_v[k];
    const float d_new_cell = d_new_cell_v[k];
    const float i = i_v[k];
    const float f = f_v[k];
    const float g = g_v[k];
    const float o = o_v[k];
    const int64_t index_d1 = j1;
    const float sigmoid_o = fg::sigmoid(o);
    const float sigmoid_f = fg::sigmoid(f);
    const float sigmoid_i = fg::sigmoid(i);
    const float tanh_g = tanhf(g);
    const float prod = sigmoid_i * tanh_g;
    const float new_cell = sigmoid_f * cell + prod;
    const float tanh_new_cell = tanhf(new_cell);
    const float prod_d_out_0 = d_out_0 * ((1.0f - sigmoid_o) * sigmoid_o * tanh_new_cell);
    const float prod_d_out_0_2 = d_out_0 * ((1.0f - tanh_new_cell * tanh_new_cell) * sigmoid_o);
    const float sum_d_new_cell = prod_d_out_0_2 + d_new_cell;
    const float prod_2 = sum_d_new_cell * ((1.0f - tanh_g * tanh_g) * sigmoid_i);
    const float prod_sum_d_new_cell = sum_d_new_cell * (cell * (1.0f - sigmoid_f) * sigmoid_f);
    const float sum = (index_d1 == 3 ? prod_d_out_0 : 0.0f) + (index_d1 == 2 ? prod_2 : 0.0f);
    const float prod_sum_d_new_cell_2 = sum_d_new_cell * ((1.0f - sigmoid_i) * sigmoid_i * tanh_g);
    const float sum_3 = sum + (index_d1 == 1 ? prod_sum_d_new_cell : 0.0f);
    sum_2_v[k] = sum_3 + (index_d1 == 0 ? prod_sum_d_new_cell_2 : 0.0f);
  }
  fg::store_vector<4>(sum_2_ptr + at, sum_2_v);
}
