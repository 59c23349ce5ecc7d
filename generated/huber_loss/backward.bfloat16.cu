// fusegen emit huber_loss --which backward --dtype bfloat16 --shape input=512,3072 --shape target=512,3072
#include "fusegen.cuh"

// huber_loss, backward                                        declared in ops/losses.py
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   d = input - target
//   distance = abs(d)
//   above_distance_delta = distance > delta
//   prod_delta = delta * sign(d)
//   prod_d = 0.5 * d
//   sum = prod_d + prod_d
//   d_input = prod_d_out * where(above_distance_delta, prod_delta, sum)
//   d_target = prod_d_out * where(above_distance_delta, -prod_delta, -sum)
// elementwise: 8 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void huber_loss_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                              const bf16* __restrict__ target_ptr,  // [D0, D1]
                              const bf16* __restrict__ d_out_ptr,   // []
                              bf16* __restrict__ d_input_ptr,       // [D0, D1]
                              bf16* __restrict__ d_target_ptr,      // [D0, D1]
                              float delta, int64_t D0, int64_t D1, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const auto target_v = fg::load_vector<8>(target_ptr + at);
  const float d_out = fg::load(d_out_ptr);
  fg::Vec<float, 8> d_input_v;
  fg::Vec<float, 8> d_target_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const float target = target_v[k];
    const float prod_d_out = d_out * fg::divide_by_count(1.0f, float(D0 * D1));
    const float d = input - target;
    const float distance = fg::abs(d);
    const bool above_distance_delta = distance > delta;
    const float prod_delta = delta * fg::sign(d);
    const float prod_d = 0.5f * d;
    const float sum = prod_d + prod_d;
    d_input_v[k] = prod_d_out * (above_distance_delta ? prod_delta : sum);
    d_target_v[k] = prod_d_out * (above_distance_delta ? -prod_delta : -sum);
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_target_ptr + at, d_target_v);
}
