// fusegen emit lstm_cell --which forward --dtype bfloat16 --shape gates=512,3072 --shape cell=512,768
#include "fusegen.cuh"

// lstm_cell, forward                                          declared in ops/cells.py
//   prod = sigmoid(i) * tanh(g)
//   new_cell = sigmoid(f) * cell + prod
//   hidden = sigmoid(o) * tanh(new_cell)
// elementwise: 8 elements a thread; i, f, g, o in rows that lie apart
extern "C" __global__ __launch_bounds__(256)
void lstm_cell_forward_bf16(const bf16* __restrict__ cell_ptr,  // [D0, D1]
                            const bf16* __restrict__ i_ptr,     // [D0, D1]
                            const bf16* __restrict__ f_ptr,     // [D0, D1]
                            const bf16* __restrict__ g_ptr,     // [D0, D1]
                            const bf16* __restrict__ o_ptr,     // [D0, D1]
                            bf16* __restrict__ hidden_ptr,      // [D0, D1]
                            bf16* __restrict__ new_cell_ptr,    // [D0, D1]
                            int n, fg::Divisor n1, int i_stride0, int f_stride0, int g_stride0, int o_stride0) {
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
  fg::Vec<float, 8> hidden_v;
  fg::Vec<float, 8> new_cell_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float cell = cell_v[k];
    const float i = i_v[k];
    const float f = f_v[k];
    const float g = g_v[k];
    const float o = o_v[k];
    const float prod = fg::fast_sigmoid(i) * fg::fast_tanh(g);
    const float new_cell = fg::fast_sigmoid(f) * cell + prod;
    hidden_v[k] = fg::fast_sigmoid(o) * fg::fast_tanh(new_cell);
    new_cell_v[k] = new_cell;
  }
  fg::store_vector<8>(hidden_ptr + at, hidden_v);
  fg::store_vector<8>(new_cell_ptr + at, new_cell_v);
}
