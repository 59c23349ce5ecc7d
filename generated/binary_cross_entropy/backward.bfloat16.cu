// fusegen emit binary_cross_entropy --which backward --dtype bfloat16 --shape input=512,3072 --shape target=512,3072
#include "fusegen.cuh"

template <typename T> FG_DEVICE T log_of_complement(T p) { return fg::maximum(T(log1p(-p)), T(-100)); }

template <typename T> FG_DEVICE T log_of_probability(T p) { return fg::maximum(T(log(p)), T(-100)); }

// binary_cross_entropy, backward                              declared in ops/likelihoods.py
//   prod_d_out = d_out * (1 / float32(D0 * D1))
//   diff_input = 1 - input
//   maximum_value = maximum(input * diff_input, 1e-12)
//   ratio = input * (target - 1) / maximum_value
//   log_of_probability_input = log_of_probability(input)
//   diff = log_of_complement(input) - log_of_probability_input
//   d_input = -(prod_d_out * (ratio + target * diff_input / maximum_value))
//   d_target = prod_d_out * diff
// elementwise: 8 elements a thread; d_out the same for all
extern "C" __global__ __launch_bounds__(256)
void binary_cross_entropy_backward_bf16(const bf16* __restrict__ input_ptr,   // [D0, D1]
                                        const bf16* __restrict__ target_ptr,  // [D0, D1]
                                        const bf16* __restrict__ d_out_ptr,   // []
                                        bf16* __restrict__ d_input_ptr,       // [D0, D1]
                                        bf16* __restrict__ d_target_ptr,      // [D0, D1]
                                        int64_t D0, int64_t D1, int n) {
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
    const float diff_input = 1.0f - input;
    const float maximum_value = fg::maximum(input * diff_input, 1e-12f);
    const float ratio = input * (target - 1.0f) / maximum_value;
    const float log_of_probability_input = log_of_probability(input);
    const float diff = log_of_complement(input) - log_of_probability_input;
    d_input_v[k] = -(prod_d_out * (ratio + target * diff_input / maximum_value));
    d_target_v[k] = prod_d_out * diff;
  }
  fg::store_vector<8>(d_input_ptr + at, d_input_v);
  fg::store_vector<8>(d_target_ptr + at, d_target_v);
}
