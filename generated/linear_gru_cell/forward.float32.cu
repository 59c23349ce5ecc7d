// fusegen emit linear_gru_cell --which forward --dtype float32 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, forward: without a kernel
//   own[D0, D1, D3] = input(d2 -> d7) @ weight_ih(d4 -> d7) over [D7]
//   recurrent[D0, D3, D5] = hidden(d3 -> d8) @ weight_hh(d6 -> d8) over [D8]

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   i_r = sum[d1](where(index(d1) == 0, own, 0))
//   i_z = sum[d1](where(index(d1) == 1, own, 0))
//   i_n = sum[d1](where(index(d1) == 2, own, 0))
// column: 1024 neighbouring results a block, reduced over D1
extern "C" __global__ __launch_bounds__(256, 4)
void linear_gru_cell_forward_epilogue_f32_i_r_and_2_more(const float* own_ptr,         // [D0, D1, D3]
                                                         float* __restrict__ i_r_ptr,  // [D0, D3]
                                                         float* __restrict__ i_z_ptr,  // [D0, D3]
                                                         float* __restrict__ i_n_ptr,  // [D0, D3]
                                                         int m, int n, fg::Divisor n1, int own_stride0,
                                                         int own_stride2, int i_r_stride0, int i_z_stride0,
                                                         int i_n_stride0) {
  fg::wait_for_previous_kernel();
  // A thread owns 4 neighbouring results and adds up their elements by itself.
  const int result = int(blockIdx.x) * 1024 + 4 * threadIdx.x;
  const bool inside = result < m;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  fg::Vec<float, 4> i_r_v = {};
  fg::Vec<float, 4> i_z_v = {};
  fg::Vec<float, 4> i_n_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = 0; at < n; ++at) {
      const int j2 = at;
      const auto own_v = fg::load_vector<4>(own_ptr + j0 * own_stride0 + j1 + j2 * own_stride2);
      const int64_t index_d1 = j2;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float own = own_v[k];
        i_r_v[k] += index_d1 == 0 ? own : 0.0f;
        i_z_v[k] += index_d1 == 1 ? own : 0.0f;
        i_n_v[k] += index_d1 == 2 ? own : 0.0f;
      }
    }
  }

  if (inside) {
    fg::store_vector<4>(i_r_ptr + (j0 * i_r_stride0 + j1), i_r_v);
    fg::store_vector<4>(i_z_ptr + (j0 * i_z_stride0 + j1), i_z_v);
    fg::store_vector<4>(i_n_ptr + (j0 * i_n_stride0 + j1), i_n_v);
  }
}

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   h_r = sum[d5](where(index(d5) == 0, recurrent, 0))
//   h_z = sum[d5](where(index(d5) == 1, recurrent, 0))
//   h_n = sum[d5](where(index(d5) == 2, recurrent, 0))
// serial: a thread a result, reduced over D5
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_forward_epilogue_f32_h_r_and_2_more(const float* recurrent_ptr,   // [D0, D3, D5]
                                                         float* __restrict__ h_r_ptr,  // [D0, D3]
                                                         float* __restrict__ h_z_ptr,  // [D0, D3]
                                                         float* __restrict__ h_n_ptr,  // [D0, D3]
                                                         int m, int n, int recurrent_stride0) {
  fg::wait_for_previous_kernel();
  // A thread owns one result and adds up its elements by itself.
  const int result = int(blockIdx.x) * 256 + threadIdx.x;
  if (result >= m) return;
  const int j0 = result;

  float h_r = 0;
  float h_z = 0;
  float h_n = 0;
  for (int at = 0; at < n; ++at) {
    const int j1 = at;
    const float recurrent = fg::load(recurrent_ptr + j0 * recurrent_stride0 + j1);
    const int64_t index_d5 = j1;
    h_r += index_d5 == 0 ? recurrent : 0.0f;
    h_z += index_d5 == 1 ? recurrent : 0.0f;
    h_n += index_d5 == 2 ? recurrent : 0.0f;
  }

  fg::store(h_r_ptr + j0, h_r);
  fg::store(h_z_ptr + j0, h_z);
  fg::store(h_n_ptr + j0, h_n);
}

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   r = sigmoid(i_r + h_r)
//   n_ = tanh(i_n + r * h_n)
//   z = sigmoid(i_z + h_z)
//   out = n_ + z * (hidden - n_)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_forward_epilogue_f32_out(const float* __restrict__ hidden_ptr,  // [D0, 1, D3]
                                              const float* i_r_ptr,                  // [D0, D3]
                                              const float* i_z_ptr,                  // [D0, D3]
                                              const float* i_n_ptr,                  // [D0, D3]
                                              const float* h_r_ptr,                  // [D0, D3]
                                              const float* h_z_ptr,                  // [D0, D3]
                                              const float* h_n_ptr,                  // [D0, D3]
                                              float* __restrict__ out_ptr,           // [D0, D3]
                                              int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto hidden_v = fg::load_vector<4>(hidden_ptr + at);
  const auto i_r_v = fg::load_vector<4>(i_r_ptr + at);
  const auto i_z_v = fg::load_vector<4>(i_z_ptr + at);
  const auto i_n_v = fg::load_vector<4>(i_n_ptr + at);
  const auto h_r_v = fg::load_vector<4>(h_r_ptr + at);
  const auto h_z_v = fg::load_vector<4>(h_z_ptr + at);
  const auto h_n_v = fg::load_vector<4>(h_n_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float hidden = hidden_v[k];
    const float i_r = i_r_v[k];
    const float i_z = i_z_v[k];
    const float i_n = i_n_v[k];
    const float h_r = h_r_v[k];
    const float h_z = h_z_v[k];
    const float h_n = h_n_v[k];
    const float r = fg::sigmoid(i_r + h_r);
    const float n_ = tanhf(i_n + r * h_n);
    const float z = fg::sigmoid(i_z + h_z);
    out_v[k] = n_ + z * (hidden - n_);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
