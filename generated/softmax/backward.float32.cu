// fusegen emit softmax --which backward --dtype float32 --shape input=512,3072
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_sum_exp = sum[d1](-prod_d_out_out)
//   d_input = prod_d_out_out + d_sum_exp * out
// rows: 256 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(256, 5)
void softmax_backward_f32(const float* __restrict__ d_out_ptr,  // [D0, D1]
                          const float* __restrict__ out_ptr,    // [D0, D1]
                          float* __restrict__ d_input_ptr,      // [D0, D1]
                          int m, int n, int d_out_stride0, int out_stride0, int d_input_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using d_out_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(d_out_element, d_out_row, [3][256]);
  using out_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(out_element, out_row, [3][256]);
  const int j0 = row;
#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&d_out_row[part][thread], d_out_ptr + j0 * d_out_stride0 + j1);
    fg::load_async(&out_row[part][thread], out_ptr + j0 * out_stride0 + j1);
  }
  fg::await_loads();

  float d_sum_exp = 0;
#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    const auto out_v = fg::widen(out_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_sum_exp -= prod_d_out_out;
    }
  }
  fg::row_sum<256, 1, 0>(d_sum_exp);

#pragma unroll 2
  for (int part = 0; part < 3; ++part) {
    const int at = 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto d_out_v = fg::widen(d_out_row[part][thread]);
    const auto out_v = fg::widen(out_row[part][thread]);
    fg::Vec<float, 4> d_input_v;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_input_v[k] = prod_d_out_out + d_sum_exp * out;
    }
    fg::store_vector<4>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
  }
}
