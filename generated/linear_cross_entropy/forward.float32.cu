// fusegen emit linear_cross_entropy --which forward --dtype float32 --dtype target=int64 --shape input=512,768
//     --shape linear_weight=3072,768 --shape target=512
#include "fusegen.cuh"

// linear_cross_entropy, forward: without a kernel
//   logits[D0, D2] = input(d1 -> d4) @ linear_weight(d3 -> d4) over [D4]

// linear_cross_entropy, forward prologue                      declared in ops/linear_losses.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D2)
//   total_2 = sum[d0](int64(divisor))
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void linear_cross_entropy_forward_prologue_f32(const int64_t* __restrict__ target_ptr,  // [D0]
                                               int64_t* __restrict__ total_2_ptr,       // []
                                               int64_t ignore_index, int64_t D2, int n) {
  int64_t total_2 = 0;

  // The blocks take turns; each thread owns 2 consecutive elements at a time.
  const int first = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 2 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto target_v = fg::load_vector<2>(target_ptr + at);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int64_t target = target_v[k];
      const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D2);
      total_2 += int64_t(divisor);
    }
  }
  total_2 = fg::block_sum<256>(total_2);

  if (threadIdx.x == 0) {
    fg::store(total_2_ptr, total_2);
  }
}

// linear_cross_entropy, forward epilogue                      declared in ops/linear_losses.py
//   top = max[d2](logits)
//   sum_exp = sum_exp[d2](logits)
//   picked = sum[d2](where(index(d2) == target, logits, 0))
// rows: 192 threads a row over D2, which stays in shared memory: read once
extern "C" __global__ __launch_bounds__(192, 7)
void linear_cross_entropy_forward_epilogue_f32_top_and_2_more(const int64_t* __restrict__ target_ptr,  // [D0]
                                                              const float* logits_ptr,                 // [D0, D2]
                                                              float* __restrict__ top_ptr,             // [D0]
                                                              float* __restrict__ sum_exp_ptr,         // [D0]
                                                              float* __restrict__ picked_ptr,          // [D0]
                                                              int m, int n, int logits_stride0) {
  fg::wait_for_previous_kernel();
  const int thread = threadIdx.x;
  const int row = int(blockIdx.x);
  using logits_element = fg::Raw<float, 4>;
  FUSEGEN_SHARED(logits_element, logits_row, [4][192]);
  const int j0 = row;
  const int64_t target = fg::load(target_ptr + j0);
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const int at = 4 * (192 * part + threadIdx.x);
    const int j1 = at;
    fg::load_async(&logits_row[part][thread], logits_ptr + j0 * logits_stride0 + j1);
  }
  fg::await_loads();

  fg::SumExp<float> sum_exp_state;
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto logits_v = fg::widen(logits_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float logits = logits_v[k];
      sum_exp_state.see(logits);
    }
  }
  sum_exp_state.settle();
  fg::read_again();
#pragma unroll 2
  for (int part = 0; part < 4; ++part) {
    const auto logits_v = fg::widen(logits_row[part][thread]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float logits = logits_v[k];
      sum_exp_state.take(logits);
    }
  }
  sum_exp_state.finish();
  fg::row_merge<192, 1, 0>(sum_exp_state);
  const float sum_exp = sum_exp_state.result();
  const float top = sum_exp_state.partner();
  const int64_t picked_at = target;
  float picked = 0;
  if (0 <= picked_at && picked_at < n) picked = fg::load(logits_ptr + j0 * logits_stride0 + picked_at);

  if (threadIdx.x == 0) {
    fg::store(top_ptr + j0, top);
    fg::store(sum_exp_ptr + j0, sum_exp);
    fg::store(picked_ptr + j0, picked);
  }
}

// linear_cross_entropy, forward epilogue                      declared in ops/linear_losses.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D2)
//   spread = log(sum_exp)
//   top_2 = stop_gradient(top)
//   loss = where(divisor, spread - (picked - top_2), 0)
//   total = sum[d0](loss)
//   out = total / float32(total_2)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void linear_cross_entropy_forward_epilogue_f32_out(const int64_t* __restrict__ target_ptr,  // [D0]
                                                   const int64_t* total_2_ptr,              // []
                                                   const float* top_ptr,                    // [D0]
                                                   const float* sum_exp_ptr,                // [D0]
                                                   const float* picked_ptr,                 // [D0]
                                                   float* __restrict__ out_ptr,             // []
                                                   int64_t ignore_index, int64_t D2, int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_chains;

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
      const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D2);
      const float spread = logf(sum_exp);
      const float top_2 = top;
      const float loss = divisor ? spread - (picked - top_2) : 0.0f;
      total_part += loss;
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());

  if (threadIdx.x == 0) {
    const int64_t total_2 = fg::load(total_2_ptr);
    fg::store(out_ptr, fg::divide(total, float(total_2)));
  }
}
