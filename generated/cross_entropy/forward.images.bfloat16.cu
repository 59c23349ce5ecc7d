// Operands with rows side by side: see IMAGES in tools/generate.py
#include "fusegen.cuh"

// cross_entropy, forward                                      declared in ops/classes.py
//   top = max[d1](input)
//   sum_exp = sum_exp[d1](input)
//   picked = sum[d1](where(index(d1) == target, input, 0))
//   divisor = (target != ignore_index) & (target >= 0) & (target < D1)
//   spread = log(sum_exp)
//   top_2 = stop_gradient(top)
//   loss = where(divisor, spread - (picked - top_2), 0)
//   total = sum[d0, d2, d3](loss)
//   total_2 = sum[d0, d2, d3](int64(divisor))
// strided rows: a thread for 2 neighbouring results over D1, whose elements stay in registers: read once; total,
//     total_2 added up by blocks, then over blocks by a second kernel
extern "C" __global__ __launch_bounds__(128, 6)
void cross_entropy_forward_bf16_total_by_group_and_1_more(
    const bf16* __restrict__ input_ptr,          // [D0, D1, D2, D3]
    const int64_t* __restrict__ target_ptr,      // [D0, D2, D3]
    float* __restrict__ total_by_group_ptr,      // [GROUPS]
    int64_t* __restrict__ total_2_by_group_ptr,  // [GROUPS]
    int64_t ignore_index, int64_t D1, int m, int n, fg::Divisor n1, int input_stride0, int input_stride2,
    int target_stride0) {
  // A thread owns 2 neighbouring results, whose elements stay in registers.
  fg::Chains<float> total_chains;
  int64_t total_2 = 0;
  for (int first = 256 * int(blockIdx.x); first < m; first += 256 * int(gridDim.x)) {
    const int result = first + 2 * threadIdx.x;
    int rest = result;
    const int j1 = fg::take(rest, n1);
    const int j0 = rest;
    const auto target_v = fg::load_vector<2>(target_ptr + j0 * target_stride0 + j1);
    fg::Raw<bf16, 2> input_row[19];
#pragma unroll
    for (int at = 0; at < 19; ++at) {
      const int j2 = at;
      input_row[at] = fg::load_raw<2>(input_ptr + j0 * input_stride0 + j1 + j2 * input_stride2);
    }

    fg::SumExp<float> sum_exp_state[2];
#pragma unroll
    for (int at = 0; at < 19; ++at) {
      const auto input_v = fg::widen(input_row[at]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float input = input_v[k];
        sum_exp_state[k].see(input);
      }
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      sum_exp_state[k].settle();
    }
#pragma unroll
    for (int at = 0; at < 19; ++at) {
      const auto input_v = fg::widen(input_row[at]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float input = input_v[k];
        sum_exp_state[k].take_fast(input);
      }
    }
    fg::Vec<float, 2> sum_exp_v;
    fg::Vec<float, 2> top_v;
    fg::Vec<float, 2> picked_v = {};
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      sum_exp_v[k] = sum_exp_state[k].result();
      top_v[k] = sum_exp_state[k].partner();
      const int64_t picked_place = target_v[k];
      const bool has_picked = 0 <= picked_place && picked_place < n;
      const int picked_at = has_picked ? int(picked_place) : 0;
      if (has_picked) picked_v[k] = fg::load(input_ptr + j0 * input_stride0 + j1 + picked_at * input_stride2 + k);
    }

    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const bool divisor = ((target_v[k] != ignore_index) & (target_v[k] >= 0)) & (target_v[k] < D1);
      const float spread = fg::fast_log(sum_exp_v[k]);
      const float top_2 = top_v[k];
      const float loss = divisor ? spread - (picked_v[k] - top_2) : 0.0f;
      total_part += loss;
      total_2 += int64_t(divisor);
    }
    total_chains.add(total_part);
  }
  float total = total_chains.total();
  fg::row_sum<128, 1, 0>(total);
  fg::row_sum<128, 1, 1>(total_2);

  if (threadIdx.x == 0) {
    total_by_group_ptr[blockIdx.x] = total;
    total_2_by_group_ptr[blockIdx.x] = total_2;
  }
}

// cross_entropy, forward                                      declared in ops/classes.py
//   total = sum[groups](total_by_group)
//   total_2 = sum[groups](total_2_by_group)
//   out = total / float32(total_2)
// full reduction: one pass reduces everything
extern "C" __global__ __launch_bounds__(256, 4)
void cross_entropy_forward_bf16_out(const float* total_by_group_ptr,      // [GROUPS]
                                    const int64_t* total_2_by_group_ptr,  // [GROUPS]
                                    bf16* __restrict__ out_ptr,           // []
                                    int n) {
  fg::wait_for_previous_kernel();
  fg::Chains<float> total_chains;
  int64_t total_2 = 0;

  // The blocks take turns; each thread owns 4 consecutive elements at a time.
  const int first = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  const int stride = 4 * int(gridDim.x) * 256;
  for (int at = first; at < n; at += stride) {
    const auto total_by_group_v = fg::load_vector<4>(total_by_group_ptr + at);
    const auto total_2_by_group_v = fg::load_vector<4>(total_2_by_group_ptr + at);
    float total_part = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float total_by_group = total_by_group_v[k];
      const int64_t total_2_by_group = total_2_by_group_v[k];
      total_part += total_by_group;
      total_2 += total_2_by_group;
    }
    total_chains.add(total_part);
  }
  const float total = fg::block_sum<256>(total_chains.total());
  total_2 = fg::block_sum<256>(total_2);

  if (threadIdx.x == 0) {
    fg::store(out_ptr, fg::divide(total, float(total_2)));
  }
}
