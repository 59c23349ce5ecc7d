// fusegen emit dropout --which forward --dtype bfloat16 --shape input=512,3072
#include "fusegen.cuh"

// dropout, forward                                            declared in ops/dropouts.py
//   above = uniform(seed, 0, index(d0), index(d1)) >= float32(p)
//   out = where(above, input * float32(1 / (1 - p)), 0)
// elementwise: 8 elements a thread; seed the same for all
extern "C" __global__ __launch_bounds__(256)
void dropout_forward_bf16(const bf16* __restrict__ input_ptr,    // [D0, D1]
                          const int64_t* __restrict__ seed_ptr,  // []
                          bf16* __restrict__ out_ptr,            // [D0, D1]
                          double p, int n, fg::Divisor n1) {
  const float number = float(1.0 / (1.0 - p));
  // Locate: each thread owns 8 consecutive elements.
  const int at = 8 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  int rest = at;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;
  fg::assume_multiple<8>(j1);

  const auto input_v = fg::load_vector<8>(input_ptr + at);
  const int64_t seed = fg::load(seed_ptr);
  fg::Vec<float, 8> out_v;

#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const float input = input_v[k];
    const int64_t index_d0 = j0;
    const int64_t index_d1 = j1 + k;
    const bool above = fg::uniform(seed, int64_t(0), index_d0, index_d1) >= float(p);
    out_v[k] = above ? input * number : 0.0f;
  }
  fg::store_vector<8>(out_ptr + at, out_v);
}
