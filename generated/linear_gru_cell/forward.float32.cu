// fusegen emit linear_gru_cell --which forward --dtype float32 --shape input=512,768 --shape hidden=512,1024
//     --shape weight_ih=3072,768 --shape weight_hh=3072,1024
#include "fusegen.cuh"

// linear_gru_cell, forward: without a kernel
//   own[D0, D1, D3] = input(d2 -> d7) @ weight_ih(d4 -> d7) over [D7]
//   recurrent[D0, D3, D5] = hidden(d3 -> d8) @ weight_hh(d6 -> d8) over [D8]

// linear_gru_cell, forward epilogue                           declared in ops/cells.py
//   sum_own_at_3 = own_at_3 + sigmoid(own_at + recurrent_at) * recurrent_at_3
//   tanh_value = tanh(sum_own_at_3)
//   prod = sigmoid(own_at_2 + recurrent_at_2) * (hidden - tanh_value)
//   out = tanh_value + prod
// elementwise: 4 elements a thread; own_at, own_at_2, own_at_3 in rows that lie apart; recurrent_at, recurrent_at_2,
//     recurrent_at_3 gathered element by element
extern "C" __global__ __launch_bounds__(256)
void linear_gru_cell_forward_epilogue_f32(const float* __restrict__ hidden_ptr,  // [D0, 1, D3]
                                          const float* own_at_ptr,               // [D0, D1, D3]
                                          const float* own_at_2_ptr,             // [D0, D1, D3]
                                          const float* own_at_3_ptr,             // [D0, D1, D3]
                                          const float* recurrent_at_ptr,         // [D0, D3, D5]
                                          const float* recurrent_at_2_ptr,       // [D0, D3, D5]
                                          const float* recurrent_at_3_ptr,       // [D0, D3, D5]
                                          float* __restrict__ out_ptr,           // [D0, D3]
                                          int64_t D1, int64_t D5, int64_t own_at_step1, int64_t own_at_2_step1,
                                          int64_t own_at_3_step1, int64_t recurrent_at_step5,
                                          int64_t recurrent_at_2_step5, int64_t recurrent_at_3_step5, int n,
                                          fg::Divisor n1, int own_at_stride0, int own_at_2_stride0,
                                          int own_at_3_stride0, int recurrent_at_stride0, int recurrent_at_stride1,
                                          int recurrent_at_2_stride0, int recurrent_at_2_stride1,
                                          int recurrent_at_3_stride0, int recurrent_at_3_stride1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto hidden_v = fg::load_vector<4>(hidden_ptr + at);
  const auto own_at_v = fg::gather<4>(own_at_ptr + j0 * own_at_stride0 + j1, 0, D1, own_at_step1);
  const auto own_at_2_v = fg::gather<4>(own_at_2_ptr + j0 * own_at_2_stride0 + j1, 1, D1, own_at_2_step1);
  const auto own_at_3_v = fg::gather<4>(own_at_3_ptr + j0 * own_at_3_stride0 + j1, 2, D1, own_at_3_step1);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float hidden = hidden_v[k];
    const float own_at = own_at_v[k];
    const float own_at_2 = own_at_2_v[k];
    const float own_at_3 = own_at_3_v[k];
    const int recurrent_at_at = j0 * recurrent_at_stride0 + j1 * recurrent_at_stride1 + k * recurrent_at_stride1;
    const float recurrent_at = fg::gather(recurrent_at_ptr + recurrent_at_at, 0, D5, recurrent_at_step5);
    const int recurrent_at_2_at = j0 * recurrent_at_2_stride0 + j1 * recurrent_at_2_stride1 +
                                  k * recurrent_at_2_stride1;
    const float recurrent_at_2 = fg::gather(recurrent_at_2_ptr + recurrent_at_2_at, 1, D5, recurrent_at_2_step5);
    const int recurrent_at_3_at = j0 * recurrent_at_3_stride0 + j1 * recurrent_at_3_stride1 +
                                  k * recurrent_at_3_stride1;
    const float recurrent_at_3 = fg::gather(recurrent_at_3_ptr + recurrent_at_3_at, 2, D5, recurrent_at_3_step5);
    const float sum_own_at_3 = own_at_3 + fg::sigmoid(own_at + recurrent_at) * recurrent_at_3;
    const float tanh_value = tanhf(sum_own_at_3);
    const float prod = fg::sigmoid(own_at_2 + recurrent_at_2) * (hidden - tanh_value);
    out_v[k] = tanh_value + prod;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
