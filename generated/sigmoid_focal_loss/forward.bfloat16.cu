// fusegen emit sigmoid_focal_loss --which forward --dtype bfloat16 --shape inputs=512,3072 --shape targets=512,3072
#include "fusegen.cuh"

// sigmoid_focal_loss, forward                                 declared in ops/likelihoods.py
//   diff_targets = 1 - targets
//   prod = float32(1 - alpha) * diff_targets
//   sum = float32(alpha) * targets + prod
//   weight = where(float32(alpha) >= 0, sum, 1)
//   prod_2 = sigmoid_rn(inputs) * diff_targets
//   missed = prod_2 + sigmoid_rn(-inputs) * targets
//   diff = diff_targets * inputs - logsigmoid(inputs)
//   loss = weight * pow(missed, gamma) * diff
// elementwise: 8 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void sigmoid_focal_loss_forward_bf16(const bf16* __restrict__ inputs_ptr,   // [D0, D1]
                                     const bf16* __restrict__ targets_ptr,  // [D0, D1]
                                     bf16* __restrict__ loss_ptr,           // [D0, D1]
                                     double alpha, float gamma_, int n) {
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto inputs_v = fg::load_vector<8>(inputs_ptr + at);
  const auto targets_v = fg::load_vector<8>(targets_ptr + at);
  fg::Vec<float, 8> loss_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float inputs = inputs_v[k];
    const float targets = targets_v[k];
    const float diff_targets = 1.0f - targets;
    const float prod = float(1.0 - alpha) * diff_targets;
    const float sum = float(alpha) * targets + prod;
    const float weight = float(alpha) >= 0.0f ? sum : 1.0f;
    const float prod_2 = fg::sigmoid(inputs) * diff_targets;
    const float missed = prod_2 + fg::sigmoid(-inputs) * targets;
    const float diff = diff_targets * inputs - fg::fast_logsigmoid(inputs);
    loss_v[k] = weight * fg::fast_pow(missed, gamma_) * diff;
  }
  fg::store_vector<8>(loss_ptr + at, loss_v);
}
