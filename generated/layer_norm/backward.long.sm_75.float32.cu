// fusegen emit layer_norm --which backward --dtype float32 --shape input=64,16384 --shape weight=16384
//     --shape bias=16384 --arg normalized_shape=(16384,) --arch sm_75
#include "fusegen.cuh"

// layer_norm, backward                                        declared in ops/norms.py
//   prod_d_out_weight = d_out * weight
//   mean = total / float32(D1)
//   diff_input_mean = input - mean
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   ratio = 1 / float32(D1)
//   prod = 0.5 * rstd^3 * ratio
//   prod_rstd = rstd * ratio
//   d_deviation = sum[d1](-(prod_d_out_weight * diff_input_mean * prod))
//   d_total = sum[d1](-(prod_d_out_weight * prod_rstd))
//   rstd_2 = rsqrt(deviation / float32(D1) + eps)
// row: a block a result, reduced over D1, along the fast axis; cut into pieces that a second kernel combines in order
extern "C" __global__ __launch_bounds__(256, 4)
void layer_norm_backward_f32_d_deviation_and_2_more(const float* __restrict__ input_ptr,      // [D0, D1]
                                                    const float* __restrict__ weight_ptr,     // [D1]
                                                    const float* __restrict__ d_out_ptr,      // [D0, D1]
                                                    const float* __restrict__ total_ptr,      // [D0]
                                                    const float* __restrict__ deviation_ptr,  // [D0]
                                                    float* __restrict__ d_deviation_partial,  // [splits, m]
                                                    float* __restrict__ d_total_partial,      // [splits, m]
                                                    float eps, int64_t D1, int m, int n, int chunk,
                                                    int input_stride0, int d_out_stride0) {
  // A block owns a piece of one result's n elements.
  const int result = blockIdx.x;
  const int j0 = result;
  const float total = fg::load(total_ptr + j0);
  const float deviation = fg::load(deviation_ptr + j0);
  const float mean = fg::divide_by_count(total, float(D1));
  const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);
  const float ratio = fg::divide_by_count(1.0f, float(D1));
  const float prod = 0.5f * (rstd * rstd * rstd) * ratio;
  const float prod_rstd = rstd * ratio;
  const int begin = int(blockIdx.y) * chunk;
  const int end = fg::at_most(begin + chunk, n);

  fg::Chains<float> d_deviation_chains;
  fg::Chains<float> d_total_chains;
#pragma unroll 2
  for (int at = begin + 4 * threadIdx.x; at < end; at += 1024) {
    const int j1 = at;
    const auto input_v = fg::load_vector<4>(input_ptr + j0 * input_stride0 + j1);
    const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
    const auto d_out_v = fg::load_vector<4>(d_out_ptr + j0 * d_out_stride0 + j1);
    float d_deviation_part = 0;
    float d_total_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float input = input_v[k];
      const float weight = weight_v[k];
      const float d_out = d_out_v[k];
      const float prod_d_out_weight = d_out * weight;
      const float diff_input_mean = input - mean;
      d_deviation_part -= (prod_d_out_weight * diff_input_mean * prod);
      d_total_part -= (prod_d_out_weight * prod_rstd);
    }
    d_deviation_chains.add(d_deviation_part);
    d_total_chains.add(d_total_part);
  }
  const float d_deviation = fg::block_sum<256>(d_deviation_chains.total());
  const float d_total = fg::block_sum<256>(d_total_chains.total());

  if (threadIdx.x == 0) {
    d_deviation_partial[int(blockIdx.y) * m + result] = d_deviation;
    d_total_partial[int(blockIdx.y) * m + result] = d_total;
  }
}

// The pieces of each result, combined in their order.
extern "C" __global__ __launch_bounds__(128)
void layer_norm_backward_f32_d_deviation_and_2_more_finish(const float* d_deviation_partial,         // [splits, m]
                                                           const float* d_total_partial,             // [splits, m]
                                                           const float* __restrict__ deviation_ptr,  // [D0]
                                                           float* __restrict__ d_deviation_ptr,      // [D0]
                                                           float* __restrict__ d_total_ptr,          // [D0]
                                                           float* __restrict__ rstd_2_ptr,           // [D0]
                                                           float eps, int64_t D1, int m, int splits) {
  fg::wait_for_previous_kernel();
  const int result = int(blockIdx.x) * 128 + threadIdx.x;
  if (result >= m) return;
  const int j0 = result;
  float d_deviation = 0;
  float d_total = 0;
  for (int piece = 0; piece < splits; ++piece) {
    d_deviation += d_deviation_partial[piece * m + result];
    d_total += d_total_partial[piece * m + result];
  }
  const float deviation = fg::load(deviation_ptr + j0);
  fg::store(d_deviation_ptr + j0, d_deviation);
  fg::store(d_total_ptr + j0, d_total);
  fg::store(rstd_2_ptr + j0, rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps));
}

// layer_norm, backward                                        declared in ops/norms.py
//   mean = total / float32(D1)
//   diff_input_mean = input - mean
//   rstd = rsqrt(deviation / float32(D1) + eps)
//   sum_d_weight = sum[d0](d_out * (diff_input_mean * rstd))
//   sum_d_bias = sum[d0](d_out)
//   d_weight = sum_d_weight
//   d_bias = sum_d_bias
// column: 64 neighbouring results a block, reduced over D0
extern "C" __global__ __launch_bounds__(512)
void layer_norm_backward_f32_d_weight_and_1_more(const float* __restrict__ input_ptr,      // [D0, D1]
                                                 const float* __restrict__ d_out_ptr,      // [D0, D1]
                                                 const float* __restrict__ total_ptr,      // [D0]
                                                 const float* __restrict__ deviation_ptr,  // [D0]
                                                 float* __restrict__ d_weight_ptr,         // [D1]
                                                 float* __restrict__ d_bias_ptr,           // [D1]
                                                 float eps, int64_t D1, int m, int n, int input_stride1,
                                                 int d_out_stride1) {
  fg::wait_for_previous_kernel();
  // A block owns 64 neighbouring results; its 16 rows of threads share the elements.
  const int result = int(blockIdx.x) * 64 + 2 * threadIdx.x;
  const bool inside = result < m;
  const int j0 = result;

  fg::Vec<float, 2> sum_d_weight_v = {};
  fg::Vec<float, 2> sum_d_bias_v = {};
  if (inside) {
#pragma unroll 4
    for (int at = threadIdx.y; at < n; at += 16) {
      const int j1 = at;
      const auto input_v = fg::load_vector<2>(input_ptr + j0 + j1 * input_stride1);
      const auto d_out_v = fg::load_vector<2>(d_out_ptr + j0 + j1 * d_out_stride1);
      const float total = fg::load(total_ptr + j1);
      const float deviation = fg::load(deviation_ptr + j1);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float input = input_v[k];
        const float d_out = d_out_v[k];
        const float mean = fg::divide_by_count(total, float(D1));
        const float diff_input_mean = input - mean;
        const float rstd = rsqrtf(fg::divide_by_count(deviation, float(D1)) + eps);
        sum_d_weight_v[k] += d_out * (diff_input_mean * rstd);
        sum_d_bias_v[k] += d_out;
      }
    }
  }
  sum_d_weight_v = fg::column_sum<16>(sum_d_weight_v);
  sum_d_bias_v = fg::column_sum<16>(sum_d_bias_v);

  if (inside && threadIdx.y == 0) {
    fg::store_vector<2>(d_weight_ptr + j0, sum_d_weight_v);
    fg::store_vector<2>(d_bias_ptr + j0, sum_d_bias_v);
  }
}

// layer_norm, backward                                        declared in ops/norms.py
//   mean = total / float32(D1)
//   diff_input_mean = input - mean
//   sum = d_out * (weight * rstd_2) + d_deviation * 2 * diff_input_mean
//   d_input = sum + d_total
// elementwise: 4 elements a thread; weight, total, rstd_2, d_deviation, d_total broadcast
extern "C" __global__ __launch_bounds__(256)
void layer_norm_backward_f32_d_input(const float* __restrict__ input_ptr,   // [D0, D1]
                                     const float* __restrict__ weight_ptr,  // [D1]
                                     const float* __restrict__ d_out_ptr,   // [D0, D1]
                                     const float* __restrict__ total_ptr,   // [D0]
                                     const float* rstd_2_ptr,               // [D0]
                                     const float* d_deviation_ptr,          // [D0]
                                     const float* d_total_ptr,              // [D0]
                                     float* __restrict__ d_input_ptr,       // [D0, D1]
                                     int64_t D1, int n, fg::Divisor n1) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto weight_v = fg::load_vector<4>(weight_ptr + j1);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  const float total = fg::load(total_ptr + j0);
  const float rstd_2 = fg::load(rstd_2_ptr + j0);
  const float d_deviation = fg::load(d_deviation_ptr + j0);
  const float d_total = fg::load(d_total_ptr + j0);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float weight = weight_v[k];
    const float d_out = d_out_v[k];
    const float mean = fg::divide_by_count(total, float(D1));
    const float diff_input_mean = input - mean;
    const float sum = d_out * (weight * rstd_2) + d_deviation * 2.0f * diff_input_mean;
    d_input_v[k] = sum + d_total;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
