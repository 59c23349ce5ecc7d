// fusegen emit cross_entropy --which backward --dtype bfloat16 --dtype target=int64 --shape input=512,3072
//     --shape target=512
#include "fusegen.cuh"

// cross_entropy, backward                                     declared in ops/classes.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D1)
//   prod_d_out = d_out * (1 / float32(total_2))
//   ratio = prod_d_out / guarded_sum_exp
//   prod = exp(input - stop_gradient(guarded_top)) * ratio
//   d_input = where(divisor, where(index(d1) == target, -prod_d_out, 0) + prod, 0)
// rows: elementwise, D1 in pieces: what a row's elements have in common is computed once for each piece
extern "C" __global__ __launch_bounds__(192, 6)
void cross_entropy_backward_bf16(const bf16* __restrict__ input_ptr,             // [D0, D1]
                                 const int64_t* __restrict__ target_ptr,         // [D0]
                                 const bf16* __restrict__ d_out_ptr,             // []
                                 const float* __restrict__ guarded_top_ptr,      // [D0]
                                 const float* __restrict__ guarded_sum_exp_ptr,  // [D0]
                                 const int64_t* __restrict__ total_2_ptr,        // []
                                 bf16* __restrict__ d_input_ptr,                 // [D0, D1]
                                 int64_t ignore_index, int64_t D1, int m, int n, int input_stride0,
                                 int d_input_stride0) {
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const float d_out = fg::load(d_out_ptr);
  const int64_t total_2 = fg::load(total_2_ptr);
  const int row = int(blockIdx.x);
  fg::Raw<bf16, 8> input_row[2];
  const int j0 = row;
  const int64_t target = fg::load(target_ptr + j0);
  const float guarded_top = fg::load(guarded_top_ptr + j0);
  const float guarded_sum_exp = fg::load(guarded_sum_exp_ptr + j0);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    input_row[part] = fg::load_raw<8>(input_ptr + j0 * input_stride0 + j1);
  }
  const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D1);
  const float prod_d_out = d_out * fg::divide(1.0f, float(total_2));
  const float ratio = fg::divide(prod_d_out, guarded_sum_exp);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto input_v = fg::widen(input_row[part]);
    fg::Vec<float, 8> d_input_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float input = input_v[k];
      const int64_t index_d1 = j1 + k;
      const float prod = fg::fast_exp_from_top(input - guarded_top) * ratio;
      d_input_v[k] = divisor ? (index_d1 == target ? -prod_d_out : 0.0f) + prod : 0.0f;
    }
    fg::store_vector<8>(d_input_ptr + (j0 * d_input_stride0 + j1), d_input_v);
  }
}
