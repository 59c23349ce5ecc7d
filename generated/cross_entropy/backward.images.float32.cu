// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// cross_entropy, backward                                     declared in ops/classes.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D1)
//   prod_d_out = d_out * (1 / float32(total_2))
//   top_2 = barrier(top)
//   prod = prod_d_out * (1 / sum_exp) * exp(input - top_2)
//   chosen_divisor = where(divisor, where(index(d1) == target, -prod_d_out, -0), 0)
//   d_input = chosen_divisor + where(divisor, prod, 0)
// elementwise: 4 elements a thread; target, top, sum_exp broadcast; d_out, total_2 the same for all
extern "C" __global__ __launch_bounds__(256)
void cross_entropy_backward_f32(const float* __restrict__ input_ptr,      // [D0, D1, D2, D3]
                                const int64_t* __restrict__ target_ptr,   // [D0, D2, D3]
                                const float* __restrict__ d_out_ptr,      // []
                                const float* __restrict__ top_ptr,        // [D0, D2, D3]
                                const float* __restrict__ sum_exp_ptr,    // [D0, D2, D3]
                                const int64_t* __restrict__ total_2_ptr,  // []
                                float* __restrict__ d_input_ptr,          // [D0, D1, D2, D3]
                                int64_t ignore_index, int64_t D1, int n, fg::Divisor n1, fg::Divisor n2,
                                int target_stride0, int top_stride0, int sum_exp_stride0) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j2 = fg::take(rest, n2);
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto target_v = fg::load_vector<4>(target_ptr + j0 * target_stride0 + j2);
  const float d_out = fg::load(d_out_ptr);
  const auto top_v = fg::load_vector<4>(top_ptr + j0 * top_stride0 + j2);
  const auto sum_exp_v = fg::load_vector<4>(sum_exp_ptr + j0 * sum_exp_stride0 + j2);
  const int64_t total_2 = fg::load(total_2_ptr);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const int64_t target = target_v[k];
    const float top = top_v[k];
    const float sum_exp = sum_exp_v[k];
    const int64_t index_d1 = j1;
    const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D1);
    const float prod_d_out = d_out * (1.0f / float(total_2));
    const float top_2 = top;
    const float prod = prod_d_out * (1.0f / sum_exp) * expf(input - top_2);
    const float chosen_divisor = divisor ? (index_d1 == target ? -prod_d_out : -0.0f) : 0.0f;
    d_input_v[k] = chosen_divisor + (divisor ? prod : 0.0f);
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}
