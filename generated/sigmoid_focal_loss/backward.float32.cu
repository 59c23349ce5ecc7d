// fusegen emit sigmoid_focal_loss --which backward --dtype float32 --shape inputs=512,3072 --shape targets=512,3072
#include "fusegen.cuh"

// sigmoid_focal_loss, backward                                declared in ops/likelihoods.py
//   same_gamma = gamma == 0
//   sigmoid_inputs = sigmoid(inputs)
//   diff_targets = 1 - targets
//   prod = (1 - sigmoid_inputs) * diff_targets * sigmoid_inputs
//   sigmoid_value = sigmoid(-inputs)
//   diff = diff_targets * inputs - logsigmoid(inputs)
//   prod_diff = (prod - targets * (1 - sigmoid_value) * sigmoid_value) * diff
//   above = float32(alpha) >= 0
//   value = float32(1 - alpha)
//   prod_2 = value * diff_targets
//   sum = float32(alpha) * targets + prod_2
//   weight = where(above, sum, 1)
//   prod_2_2 = sigmoid_inputs * diff_targets
//   missed = prod_2_2 + sigmoid_value * targets
//   prod_gamma = gamma * pow(missed, gamma - 1)
//   chosen = where(same_gamma, 0, prod_diff * weight * prod_gamma)
//   pow_missed_gamma = pow(missed, gamma)
//   prod_weight = weight * pow_missed_gamma
//   prod_diff_2 = (sigmoid_value - sigmoid_inputs) * weight * prod_gamma * diff
//   chosen_2 = where(above, pow_missed_gamma * (float32(alpha) - value) * diff, 0)
//   diff_2 = where(same_gamma, 0, prod_diff_2) + chosen_2 - inputs * prod_weight
//   d_inputs = d_loss * (chosen + (diff_targets - sigmoid_value) * prod_weight)
//   d_targets = d_loss * diff_2
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void sigmoid_focal_loss_backward_f32(const float* __restrict__ inputs_ptr,   // [D0, D1]
                                     const float* __restrict__ targets_ptr,  // [D0, D1]
                                     const float* __restrict__ d_loss_ptr,   // [D0, D1]
                                     float* __restrict__ d_inputs_ptr,       // [D0, D1]
                                     float* __restrict__ d_targets_ptr,      // [D0, D1]
                                     double alpha, float gamma_, int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto inputs_v = fg::load_vector<4>(inputs_ptr + at);
  const auto targets_v = fg::load_vector<4>(targets_ptr + at);
  const auto d_loss_v = fg::load_vector<4>(d_loss_ptr + at);
  fg::Vec<float, 4> d_inputs_v;
  fg::Vec<float, 4> d_targets_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float inputs = inputs_v[k];
    const float targets = targets_v[k];
    const float d_loss = d_loss_v[k];
    const bool same_gamma = gamma_ == 0.0f;
    const float sigmoid_inputs = fg::sigmoid(inputs);
    const float diff_targets = 1.0f - targets;
    const float prod = (1.0f - sigmoid_inputs) * diff_targets * sigmoid_inputs;
    const float sigmoid_value = fg::sigmoid(-inputs);
    const float diff = diff_targets * inputs - fg::logsigmoid(inputs);
    const float prod_diff = (prod - targets * (1.0f - sigmoid_value) * sigmoid_value) * diff;
    const bool above = float(alpha) >= 0.0f;
    const float value = float(1.0 - alpha);
    const float prod_2 = value * diff_targets;
    const float sum = float(alpha) * targets + prod_2;
    const float weight = above ? sum : 1.0f;
    const float prod_2_2 = sigmoid_inputs * diff_targets;
    const float missed = prod_2_2 + sigmoid_value * targets;
    const float prod_gamma = gamma_ * powf(missed, gamma_ - 1.0f);
    const float chosen = same_gamma ? 0.0f : prod_diff * weight * prod_gamma;
    const float pow_missed_gamma = powf(missed, gamma_);
    const float prod_weight = weight * pow_missed_gamma;
    const float prod_diff_2 = (sigmoid_value - sigmoid_inputs) * weight * prod_gamma * diff;
    const float chosen_2 = above ? pow_missed_gamma * (float(alpha) - value) * diff : 0.0f;
    const float diff_2 = (same_gamma ? 0.0f : prod_diff_2) + chosen_2 - inputs * prod_weight;
    d_inputs_v[k] = d_loss * (chosen + (diff_targets - sigmoid_value) * prod_weight);
    d_targets_v[k] = d_loss * diff_2;
  }
  fg::store_vector<4>(d_inputs_ptr + at, d_inputs_v);
  fg::store_vector<4>(d_targets_ptr + at, d_targets_v);
}
