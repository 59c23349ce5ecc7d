// fusegen emit ema_update --which forward --dtype bfloat16 --shape average=512,3072 --shape value=512,3072
#include "fusegen.cuh"

// ema_update, forward                                         declared in ops/blends.py
//   out = average + weight * (value - average)
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void ema_update_forward_bf16(const bf16* __restrict__ average_ptr,  // [D0, D1]
                             const bf16* __restrict__ value_ptr,    // [D0, D1]
                             bf16* __restrict__ out_ptr,            // [D0, D1]
                             float weight, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto average_v = fg::load_vector<8>(average_ptr + at);
  const auto value_v = fg::load_vector<8>(value_ptr + at);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float average = average_v[k];
    const float value = value_v[k];
    out_v[k] = average + weight * (value - average);
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
