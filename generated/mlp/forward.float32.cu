// fusegen emit mlp --which forward --dtype float32 --shape input=512,768 --shape up=3072,768 --shape up_bias=3072
//     --shape down=768,3072 --shape down_bias=768
#include "fusegen.cuh"

// mlp, forward: without a kernel
//   product[D0, D3] = input(d2 -> d6) @ up(d4 -> d6) over [D6]
//   product_2[D0, D1] = hidden(d3 -> d7) @ down(d5 -> d7) over [D7]

// mlp, forward between 1                                      declared in ops/mlps.py
//   x = product + up_bias
//   hidden = 0.5 * x * erfc(-0.7071067811865476 * x)
// elementwise: 4 elements a thread; up_bias broadcast
extern "C" __global__ __launch_bounds__(256)
void mlp_forward_between_1_f32(const float* __restrict__ up_bias_ptr,  // [D3]
                               const float* product_ptr,               // [D0, D3]
                               float* __restrict__ hidden_ptr,         // [D0, D3]
                               int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto up_bias_v = fg::load_vector<4>(up_bias_ptr + j1);
  const auto product_v = fg::load_vector<4>(product_ptr + at);
  fg::Vec<float, 4> hidden_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float up_bias = up_bias_v[k];
    const float product = product_v[k];
    const float x = product + up_bias;
    hidden_v[k] = 0.5f * x * erfcf(-0.7071067811865476f * x);
  }
  fg::store_vector<4>(hidden_ptr + at, hidden_v);
}

// mlp, forward epilogue                                       declared in ops/mlps.py
//   out = product_2 + down_bias
// elementwise: 4 elements a thread; down_bias broadcast
extern "C" __global__ __launch_bounds__(256)
void mlp_forward_epilogue_f32(const float* __restrict__ down_bias_ptr,  // [D1]
                              const float* product_2_ptr,               // [D0, D1]
                              float* __restrict__ out_ptr,              // [D0, D1]
                              int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);

  const auto down_bias_v = fg::load_vector<4>(down_bias_ptr + j1);
  const auto product_2_v = fg::load_vector<4>(product_2_ptr + at);
  fg::Vec<float, 4> out_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float down_bias = down_bias_v[k];
    const float product_2 = product_2_v[k];
    out_v[k] = product_2 + down_bias;
  }
  fg::store_vector<4>(out_ptr + at, out_v);
}
