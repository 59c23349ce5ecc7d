// fusegen emit cross_entropy --which forward --dtype bfloat16 --dtype target=int64 --shape input=512,3072
//     --shape target=512
#include "fusegen.cuh"

// cross_entropy, forward                                      declared in ops/classes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
//   picked = sum[d1](where(index(d1) == target, input, 0))
// rows: 96 threads a row over D1, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(96, 14)
void cross_entropy_forward_bf16_top_and_2_more(const bf16* __restrict__ input_ptr,      // [D0, D1]
                                               const int64_t* __restrict__ target_ptr,  // [D0]
                                               float* __restrict__ top_ptr,             // [D0]
                                               float* __restrict__ sum_exp_ptr,         // [D0]
                                               float* __restrict__ picked_ptr,          // [D0]
                                               int m, int n, int input_stride0) {
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using input_element = fg::Raw<bf16, 8>;
  FUSEGEN_SHARED(input_element, input_row, [4][96]);
  const int j0 = row;
  const int64_t target = fg::load(target_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 8 * (96 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&input_row[part][thread], input_ptr + j0 * input_stride0 + j1);
  }
  fg::await_loads();

  fg::SumExp<float> sum_exp_state;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      sum_exp_state.see(input);
    }
  }
  sum_exp_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto input_v = fg::widen(input_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      sum_exp_state.take_fast(input);
    }
  }
  sum_exp_state.finish();
  fg::row_merge<96, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();
  const int64_t picked_at = target;
  float picked = 0;
  if (0 <= picked_at && picked_at < n) picked = fg::load(input_ptr + j0 * input_stride0 + picked_at);

  if (threadIdx.x == 0) {
    fg::store(top_ptr + j0, top);
    fg::store(sum_exp_ptr + j0, sum_exp);
    fg::store(picked_ptr + j0, picked);
  }
}

// cross_entropy, forward                                      declared in ops/classes.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D1)
//   spread = log(sum_exp)
//   top_2 = stop_gradient(top)
//   loss = where(divisor, spread - (picked - top_2), 0)
//   total = sum[d0](loss)
//   total_2 = sum[d0](int64(divisor))
//   out = total / float32(total_2)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void cross_entropy_forward_bf16_out(const int64_t* __restrict__ target_ptr,  // [D0]
                                    const float* top_ptr,                    // [D0]
                                    const float* sum_exp_ptr,                // [D0]
                                    const float* picked_ptr,                 // [D0]
                                    bf16* __restrict__ out_ptr,              // []
                                    int64_t ignore_index, int64_t D1, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_chains;
  int64_t total_2 = 0;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto target_v = fg::load_vector<4>(target_ptr + at);
    const auto top_v = fg::load_vector<4>(top_ptr + at);
    const auto sum_exp_v = fg::load_vector<4>(sum_exp_ptr + at);
    const auto picked_v = fg::load_vector<4>(picked_ptr + at);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int64_t target = target_v[k];
      const float top = top_v[k];
      const float sum_exp = sum_exp_v[k];
      const float picked = picked_v[k];
      const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D1);
      const float spread = fg::fast_log(sum_exp);
      const float top_2 = top;
      const float loss = divisor ? spread - (picked - top_2) : 0.0f;
      total_part += loss;
      total_2 += int64_t(divisor);
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());
  total_2 = fg::block_sum<256>(total_2);

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide(total, float(total_2)));
  }
}
