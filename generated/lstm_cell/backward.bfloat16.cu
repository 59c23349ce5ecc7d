// fusegen emit lstm_cell --which backward --dtype bfloat16 --shape gates=512,3072 --shape cell=512,768
#include "fusegen.cuh"

// lstm_cell, backward                                         declared in ops/cells.py
//   sigmoid_f = sigmoid(f)
//   sigmoid_i = sigmoid(i)
//   tanh_g = tanh(g)
//   prod = sigmoid_i * tanh_g
//   new_cell = sigmoid_f * cell + prod
//   tanh_new_cell = tanh(new_cell)
//   sigmoid_o = sigmoid(o)
//   prod_d_hidden = d_hidden * ((1 - tanh_new_cell^2) * sigmoid_o)
//   sum_d_new_cell = prod_d_hidden + d_new_cell
//   d_cell = sum_d_new_cell * sigmoid_f
//   d_i = sum_d_new_cell * ((1 - sigmoid_i) * sigmoid_i * tanh_g)
//   d_f = sum_d_new_cell * (cell * (1 - sigmoid_f) * sigmoid_f)
//   d_g = sum_d_new_cell * ((1 - tanh_g^2) * sigmoid_i)
//   d_o = d_hidden * ((1 - sigmoid_o) * sigmoid_o * tanh_new_cell)
// elementwise: 8 elements a thread; i, f, g, o, d_i, d_f, d_g, d_o in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void lstm_cell_backward_bf16(const bf16* __restrict__ cell_ptr,        // [D0, D1]
                             const bf16* __restrict__ i_ptr,           // [D0, D1]
                             const bf16* __restrict__ f_ptr,           // [D0, D1]
                             const bf16* __restrict__ g_ptr,           // [D0, D1]
                             const bf16* __restrict__ o_ptr,           // [D0, D1]
                             const bf16* __restrict__ d_hidden_ptr,    // [D0, D1]
                             const bf16* __restrict__ d_new_cell_ptr,  // [D0, D1]
                             bf16* __restrict__ d_cell_ptr,            // [D0, D1]
                             bf16* __restrict__ d_i_ptr,               // [D0, D1]
                             bf16* __restrict__ d_f_ptr,               // [D0, D1]
                             bf16* __restrict__ d_g_ptr,               // [D0, D1]
                             bf16* __restrict__ d_o_ptr,               // [D0, D1]
                             int n, fg::Divisor n1, int i_stride0, int f_stride0, int g_stride0, int o_stride0,
                             int d_i_stride0, int d_f_stride0, int d_g_stride0, int d_o_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto cell_v = fg::load_vector<8>(cell_ptr + at);
  const auto i_v = fg::load_vector<8>(i_ptr + j0 * i_stride0 + j1);
  const auto f_v = fg::load_vector<8>(f_ptr + j0 * f_stride0 + j1);
  const auto g_v = fg::load_vector<8>(g_ptr + j0 * g_stride0 + j1);
  const auto o_v = fg::load_vector<8>(o_ptr + j0 * o_stride0 + j1);
  const auto d_hidden_v = fg::load_vector<8>(d_hidden_ptr + at);
  const auto d_new_cell_v = fg::load_vector<8>(d_new_cell_ptr + at);
  fg::Vec<float, 8> d_cell_v;
  fg::Vec<float, 8> d_i_v;
  fg::Vec<float, 8> d_f_v;
  fg::Vec<float, 8> d_g_v;
  fg::Vec<float, 8> d_o_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float cell = cell_v[k];
    const float i = i_v[k];
    const float f = f_v[k];
    const float g = g_v[k];
    const float o = o_v[k];
    const float d_hidden = d_hidden_v[k];
    const float d_new_cell = d_new_cell_v[k];
    const float sigmoid_f = fg::fast_sigmoid(f);
    const float sigmoid_i = fg::fast_sigmoid(i);
    const float tanh_g = fg::fast_tanh(g);
    const float prod = sigmoid_i * tanh_g;
    const float new_cell = sigmoid_f * cell + prod;
    const float tanh_new_cell = fg::fast_tanh(new_cell);
    const float sigmoid_o = fg::fast_sigmoid(o);
    const float prod_d_hidden = d_hidden * ((1.0f - tanh_new_cell * tanh_new_cell) * sigmoid_o);
    const float sum_d_new_cell = prod_d_hidden + d_new_cell;
    d_cell_v[k] = sum_d_new_cell * sigmoid_f;
    d_i_v[k] = sum_d_new_cell * ((1.0f - sigmoid_i) * sigmoid_i * tanh_g);
    d_f_v[k] = sum_d_new_cell * (cell * (1.0f - sigmoid_f) * sigmoid_f);
    d_g_v[k] = sum_d_new_cell * ((1.0f - tanh_g * tanh_g) * sigmoid_i);
    d_o_v[k] = d_hidden * ((1.0f - sigmoid_o) * sigmoid_o * tanh_new_cell);
  }
  fg::store_vector<8>(d_cell_ptr + at, d_cell_v);
  fg::store_vector<8>(d_i_ptr + (j0 * d_i_stride0 + j1), d_i_v);
  fg::store_vector<8>(d_f_ptr + (j0 * d_f_stride0 + j1), d_f_v);
  fg::store_vector<8>(d_g_ptr + (j0 * d_g_stride0 + j1), d_g_v);
  fg::store_vector<8>(d_o_ptr + (j0 * d_o_stride0 + j1), d_o_v);
}
