// fusegen emit softmax --which backward --dtype float32 --shape input=64,65536 --arch sm_110
#include "fusegen.cuh"

// softmax, backward                                           declared in ops/softmaxes.py
//   prod_d_out_out = d_out * out
//   d_sum_exp = sum[d1](-prod_d_out_out)
//   d_input = prod_d_out_out + d_sum_exp * out
// rows: 8 blocks of 256 threads a row over D1, which stays in registers: read once
extern "C" __global__ FUSEGEN_CLUSTER(8) __launch_bounds__(256, 2)
void softmax_backward_f32(const float* __restrict__ d_out_ptr,  // [D0, D1]
                          const float* __restrict__ out_ptr,    // [D0, D1]
                          float* __restrict__ d_input_ptr,      // [D0, D1]
                          int m, int n, int d_out_stride0, int out_stride0, int d_input_stride0) {
  // 8 blocks of 256 threads share a row.
  fg::Link<8> link;
  const int begin = int(fg::cluster_rank()) * 8192;
  const int row = int(blockIdx.x) / 8;
  fg::Raw<float, 4> d_out_row[8];
  fg::Raw<float, 4> out_row[8];
  const int j0 = row;
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    d_out_row[part] = fg::load_raw<4>(d_out_ptr + j0 * d_out_stride0 + j1);
    out_row[part] = fg::load_raw<4>(out_ptr + j0 * out_stride0 + j1);
  }
  link.ready();  // all blocks of the cluster have begun

  float d_sum_exp = 0;
#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const auto d_out_v = fg::widen(d_out_row[part]);
    const auto out_v = fg::widen(out_row[part]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float d_out = d_out_v[k];
      const float out = out_v[k];
      const float prod_d_out_out = d_out * out;
      d_sum_exp -= prod_d_out_out;
    }
  }
  fg::cluster_sum<256, 0>(link, d_sum_exp);

#pragma unroll
  for (int part = 0; part < 8; ++part) {
    const int at = begin + 4 * (256 * part + threadIdx.x);
    const int j1 = at;
    const auto d_out_v = fg::widen(d_out_row[part]);
    const auto out_v = fg::widen(out_row[part]);
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
