// fusegen emit softmax --which forward --dtype float32 --shape input=64,65536 --arch sm_75
#include "fusegen.cuh"

// softmax, forward                                            declared in ops/softmaxes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
// rows: 512 threads a row over D1, which is read once, in chunks
extern "C" __global__ __launch_bounds__(512, 2)
void softmax_forward_f32_top_and_1_more(const float* __restrict__ input_ptr,  // [D0, D1]
                                        float* __restrict__ top_ptr,          // [D0]
                                        float* __restrict__ sum_exp_ptr,      // [D0]
                                        int m, int n, int input_stride0) {
  const int row = int(blockIdx.x);
  const int j0 = row;

  fg::SumExp<float> sum_exp_state;
  for (int begin = 0; begin < n; begin += 8192) {
    fg::Raw<float, 4> input_row[4];
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int at = begin + 4 * (512 * part + threadIdx.x);
      const int j1 = at;
      input_row[part] = fg::load_raw<4>(input_ptr + j0 * input_stride0 + j1);
    }
    fg::SumExp<float> sum_exp_chunk;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        sum_exp_chunk.see(input);
      }
    }
    sum_exp_chunk.settle();
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const auto input_v = fg::widen(input_row[part]);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float input = input_v[k];
        sum_exp_chunk.take(input);
      }
    }
    sum_exp_chunk.finish();
    sum_exp_state.merge(sum_exp_chunk);
  }
  fg::row_merge<512, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();

  if (threadIdx.x == 0) {
    fg::store(top_ptr + j0, top);
    fg::store(sum_exp_ptr + j0, sum_exp);
  }
}

// softmax, forward                                            declared in ops/softmaxes.py
//   out = exp(input - stop_gradient(top)) / sum_exp
// elementwise: 4 elements a thread; top, sum_exp broadcast
extern "C" __global__ __launch_bounds__(256)
void softmax_forward_f32_out(const float* __restrict__ input_ptr,  // [D0, D1]
                             const float* top_ptr,                 // [D0]
                             const float* sum_exp_ptr,             // [D0]
                             float* __restrict__ out_ptr,          // [D0, D1]
                             int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const float top = fg::load(top_ptr + j0);
  const float sum_exp = fg::load(sum_exp_ptr + j0);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    out_v[k] = fg::divide(expf(input - top), sum_exp);
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
