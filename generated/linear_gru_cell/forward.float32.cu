// fusegen emit linear_gru_cell --which forward --dtype float32 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, forward: without a kernel
//   own[D0, D1N3, D2] = input(d3 -> d6) @ weight_ih(d4 -> d6) over [D6]
//   recurrent[D0, D1N3, D2] = hidden(d2 -> d7) @ weight_hh(d5 -> d7) over [D7]

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   sum_own_at_3 = own_at_3 + sigmoid(own_at + recurrent_at) * recurrent_at_3
//   tanh_value = tanh(sum_own_at_3)
//   prod = sigmoid(own_at_2 + recurrent_at_2) * (hidden - tanh_value)
//   out = tanh_value + prod
// elementwise: 4 elements a thread; own_at, own_at_2, own_at_3, recurrent_at, recurrent_at_2, recurrent_at_3 in rows
//     that lie apart
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_forward_epilogue_f32(const float* __restrict__ hidden_ptr,  // [D0, D2]
                                          const float* own_ptr,                  // [D0, D1N3, D2]
                                          const float* recurrent_ptr,            // [D0, D1N3, D2]
                                          float* __restrict__ out_ptr,           // [D0, D2]
                                          int64_t own_step1, int64_t recurrent_step1, int n, fg::Divisor n1,
                                          int own_stride0, int recurrent_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<4>(hidden_ptr + at);
  const auto own_at_v = fg::load_vector<4>(own_ptr + j0 * own_stride0 + j1);
  const auto own_at_2_v = fg::load_vector<4>(own_ptr + j0 * own_stride0 + j1 + own_step1);
  const auto own_at_3_v = fg::load_vector<4>(own_ptr + j0 * own_stride0 + j1 + 2 * own_step1);
  const auto recurrent_at_v = fg::load_vector<4>(recurrent_ptr + j0 * recurrent_stride0 + j1);
  const auto recurrent_at_2_v = fg::load_vector<4>(recurrent_ptr + j0 * recurrent_stride0 + j1 + recurrent_step1);
  const int recurrent_at_3_at = j0 * recurrent_stride0 + j1;
  const auto recurrent_at_3_v = fg::load_vector<4>(recurrent_ptr + recurrent_at_3_at + 2 * recurrent_step1);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float hidden = hidden_v[k];
    const float own_at = own_at_v[k];
    const float own_at_2 = own_at_2_v[k];
    const float own_at_3 = own_at_3_v[k];
    const float recurrent_at = recurrent_at_v[k];
    const float recurrent_at_2 = recurrent_at_2_v[k];
    const float recurrent_at_3 = recurrent_at_3_v[k];
    const float sum_own_at_3 = own_at_3 + fg::sigmoid(own_at + recurrent_at) * recurrent_at_3;
    const float tanh_value = tanhf(sum_own_at_3);
    const float prod = fg::sigmoid(own_at_2 + recurrent_at_2) * (hidden - tanh_value);
    out_v[k] = tanh_value + prod;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
