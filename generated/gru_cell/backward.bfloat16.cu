// fusegen emit gru_cell --which backward --dtype bfloat16 --shape input_gates=512,3072 --shape hidden_gates=512,3072
//     --shape hidden=512,1024
#include "fusegen.cuh"

// gru_cell, backward                                          declared in ops/cells.py
//   z = sigmoid(i_z + h_z)
//   r = sigmoid(i_r + h_r)
//   n_ = tanh(i_n + r * h_n)
//   power_n = n_^2
//   diff = 1 - power_n
//   prod_r = h_n * (1 - r) * diff * r
//   d_i_r = d_out * (prod_r - prod_r * z)
//   d_i_z = d_out * ((1 - z) * (hidden - n_) * z)
//   prod_r_2 = diff * r
//   d_hidden = d_out * z
//   d_i_n = d_out * (1 + (power_n - 1) * z - power_n)
//   d_h_r = d_i_r
//   d_h_z = d_i_z
//   d_h_n = d_out * (prod_r_2 - prod_r_2 * z)
// elementwise: 8 elements a thread; i_r, i_z, i_n, h_r, h_z, h_n, d_i_r, d_i_z, d_i_n, d_h_r, d_h_z, d_h_n in rows that
//     lie apart
extern "C" __global__ __launch_bounds__(256)
void gru_cell_backward_bf16(const bf16* __restrict__ hidden_ptr,  // [D0, D1]
                            const bf16* __restrict__ i_r_ptr,     // [D0, D1]
                            const bf16* __restrict__ i_z_ptr,     // [D0, D1]
                            const bf16* __restrict__ i_n_ptr,     // [D0, D1]
                            const bf16* __restrict__ h_r_ptr,     // [D0, D1]
                            const bf16* __restrict__ h_z_ptr,     // [D0, D1]
                            const bf16* __restrict__ h_n_ptr,     // [D0, D1]
                            const bf16* __restrict__ d_out_ptr,   // [D0, D1]
                            bf16* __restrict__ d_hidden_ptr,      // [D0, D1]
                            bf16* __restrict__ d_i_r_ptr,         // [D0, D1]
                            bf16* __restrict__ d_i_z_ptr,         // [D0, D1]
                            bf16* __restrict__ d_i_n_ptr,         // [D0, D1]
                            bf16* __restrict__ d_h_r_ptr,         // [D0, D1]
                            bf16* __restrict__ d_h_z_ptr,         // [D0, D1]
                            bf16* __restrict__ d_h_n_ptr,         // [D0, D1]
                            int n, fg::Divisor n1, int i_r_stride0, int i_z_stride0, int i_n_stride0,
                            int h_r_stride0, int h_z_stride0, int h_n_stride0, int d_i_r_stride0, int d_i_z_stride0,
                            int d_i_n_stride0, int d_h_r_stride0, int d_h_z_stride0, int d_h_n_stride0) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<8>(hidden_ptr + at);
  const auto i_r_v = fg::load_vector<8>(i_r_ptr + j0 * i_r_stride0 + j1);
  const auto i_z_v = fg::load_vector<8>(i_z_ptr + j0 * i_z_stride0 + j1);
  const auto i_n_v = fg::load_vector<8>(i_n_ptr + j0 * i_n_stride0 + j1);
  const auto h_r_v = fg::load_vector<8>(h_r_ptr + j0 * h_r_stride0 + j1);
  const auto h_z_v = fg::load_vector<8>(h_z_ptr + j0 * h_z_stride0 + j1);
  const auto h_n_v = fg::load_vector<8>(h_n_ptr + j0 * h_n_stride0 + j1);
  const auto d_out_v = fg::load_vector<8>(d_out_ptr + at);
  fg::Vec<float, 8> d_hidden_v;
  fg::Vec<float, 8> d_i_r_v;
  fg::Vec<float, 8> d_i_z_v;
  fg::Vec<float, 8> d_i_n_v;
  fg::Vec<float, 8> d_h_r_v;
  fg::Vec<float, 8> d_h_z_v;
  fg::Vec<float, 8> d_h_n_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float hidden = hidden_v[k];
    const float i_r = i_r_v[k];
    const float i_z = i_z_v[k];
    const float i_n = i_n_v[k];
    const float h_r = h_r_v[k];
    const float h_z = h_z_v[k];
    const float h_n = h_n_v[k];
    const float d_out = d_out_v[k];
    const float z = fg::fast_sigmoid(i_z + h_z);
    const float r = fg::fast_sigmoid(i_r + h_r);
    const float n_ = fg::fast_tanh(i_n + r * h_n);
    const float power_n = n_ * n_;
    const float diff = 1.0f - power_n;
    const float prod_r = h_n * (1.0f - r) * diff * r;
    const float d_i_r = d_out * (prod_r - prod_r * z);
    const float d_i_z = d_out * ((1.0f - z) * (hidden - n_) * z);
    const float prod_r_2 = diff * r;
    d_hidden_v[k] = d_out * z;
    d_i_r_v[k] = d_i_r;
    d_i_z_v[k] = d_i_z;
    d_i_n_v[k] = d_out * (1.0f + (power_n - 1.0f) * z - power_n);
    d_h_r_v[k] = d_i_r;
    d_h_z_v[k] = d_i_z;
    d_h_n_v[k] = d_out * (prod_r_2 - prod_r_2 * z);
  }
  fg::store_vector<8>(d_hidden_ptr + at, d_hidden_v);
  fg::store_vector<8>(d_i_r_ptr + (j0 * d_i_r_stride0 + j1), d_i_r_v);
  fg::store_vector<8>(d_i_z_ptr + (j0 * d_i_z_stride0 + j1), d_i_z_v);
  fg::store_vector<8>(d_i_n_ptr + (j0 * d_i_n_stride0 + j1), d_i_n_v);
  fg::store_vector<8>(d_h_r_ptr + (j0 * d_h_r_stride0 + j1), d_h_r_v);
  fg::store_vector<8>(d_h_z_ptr + (j0 * d_h_z_stride0 + j1), d_h_z_v);
  fg::store_vector<8>(d_h_n_ptr + (j0 * d_h_n_stride0 + j1), d_h_n_v);
}
