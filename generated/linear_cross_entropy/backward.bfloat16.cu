// fusegen emit linear_cross_entropy --which backward --dtype bfloat16 --dtype target=int64 --shape input=512,768
//     --shape linear_weight=3072,768 --shape target=512
#include "fusegen.cuh"

// linear_cross_entropy, backward: without a kernel
//   d_input[D0, D1] = chosen_divisor(d2 -> d5) @ linear_weight(d2 -> d5, d3 -> d1) over [D5]
//   d_linear_weight[D2, D3] = input(d0 -> d6, d1 -> d3) @ chosen_divisor(d0 -> d6) over [D6]

// linear_cross_entropy, backward prologue                     declared in ops/linear_losses.py
//   divisor = (target != ignore_index) & (target >= 0) & (target < D2)
//   prod_d_out = d_out * (1 / float32(total_2))
//   ratio = prod_d_out / guarded_sum_exp
//   prod = exp(product - stop_gradient(guarded_top)) * ratio
//   chosen_divisor = where(divisor, where(index(d2) == target, -prod_d_out, 0) + prod, 0)
// rows: elementwise, D2 in pieces: what a row's elements have in common is computed once for each piece
extern "C" __global__ __launch_bounds__(192, 6)
void linear_cross_entropy_backward_prologue_bf16(const int64_t* __restrict__ target_ptr,         // [D0]
                                                 const bf16* __restrict__ d_out_ptr,             // []
                                                 const bf16* __restrict__ product_ptr,           // [D0, D2]
                                                 const float* __restrict__ guarded_top_ptr,      // [D0]
                                                 const float* __restrict__ guarded_sum_exp_ptr,  // [D0]
                                                 const int64_t* __restrict__ total_2_ptr,        // []
                                                 bf16* __restrict__ chosen_divisor_ptr,          // [D0, D2]
                                                 int64_t ignore_index, int64_t D2, int m, int n, int product_stride0,
                                                 int chosen_divisor_stride0) {
  // 192 threads take 3072 elements of a row.
  const int begin = int(blockIdx.y) * 3072;
  const float d_out = fg::load(d_out_ptr);
  const int64_t total_2 = fg::load(total_2_ptr);
  const int row = int(blockIdx.x);
  fg::Raw<bf16, 8> product_row[2];
  const int j0 = row;
  const int64_t target = fg::load(target_ptr + j0);
  const float guarded_top = fg::load(guarded_top_ptr + j0);
  const float guarded_sum_exp = fg::load(guarded_sum_exp_ptr + j0);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    product_row[part] = fg::load_raw<8>(product_ptr + j0 * product_stride0 + j1);
  }
  const bool divisor = ((target != ignore_index) & (target >= 0)) & (target < D2);
  const float prod_d_out = d_out * fg::divide(1.0f, float(total_2));
  const float ratio = fg::divide(prod_d_out, guarded_sum_exp);

#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const int at = begin + 8 * (192 * part + threadIdx.x);
    const int j1 = at;
    const auto product_v = fg::widen(product_row[part]);
    fg::Vec<float, 8> chosen_divisor_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float product = product_v[k];
      const int64_t index_d2 = j1 + k;
      const float prod = fg::fast_exp_from_top(product - guarded_top) * ratio;
      chosen_divisor_v[k] = divisor ? (index_d2 == target ? -prod_d_out : 0.0f) + prod : 0.0f;
    }
    fg::store_vector<8>(chosen_divisor_ptr + (j0 * chosen_divisor_stride0 + j1), chosen_divisor_v);
  }
}
