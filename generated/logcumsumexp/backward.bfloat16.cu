// fusegen emit logcumsumexp --which backward --dtype bfloat16 --shape input=512,3072 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_scan.cuh"

// logcumsumexp, backward: scans by kernels of their own
//   d_running_2 = where(isinf(running), 0, exp(where(isinf(running), 0, where(index(d1) == 0, -inf, running[d1 - 1])
//       - running))) and where(isinf(running), 0, exp(where(isinf(running), 0, where(index(d1) == 0, -inf,
//       running[d1 - 1]) - running)) * d_out) as factors and terms along D1 from the end, without the element
//       itself; d_input[D0, D1] = where(isinf(running), 0, (d_out + d_running_2) * exp(where(isinf(running), 0,
//       input - running)))

// scan: y[i] = a[i] * y[i - 1] + b[i] with a of x0, here, x0_before, b of x0, here, x0_before, x1, and the result is
//     y[i - 1], from the last element
// rows: a block for each, 2048 elements at a time
extern "C" __global__ __launch_bounds__(256)
void scan_affine_reverse_exclusive_f32_bf16(const float* __restrict__ x0_ptr, const bf16* __restrict__ x1_ptr,
                                            const bf16* __restrict__ x2_ptr, bf16* __restrict__ result_ptr,
                                            int n, int64_t x0_stride0, int64_t x1_stride0, int64_t x2_stride0,
                                            int64_t result_stride0) {
  // Locate: a block for each row.
  const int row = blockIdx.x;
  const int lane = threadIdx.x;
  const int j0 = row;
  const float* x0 = x0_ptr + j0 * x0_stride0;
  const bf16* x1 = x1_ptr + j0 * x1_stride0;
  const bf16* x2 = x2_ptr + j0 * x2_stride0;
  bf16* result = result_ptr + j0 * result_stride0;

  fg::ScanAffine<float> carry;
  int place = 0;
  for (int tile = 0; tile < n; tile += 2048) {
    // Read: neighbouring threads take neighbouring vectors.
    fg::Vec<float, 8> x0_read[1];
    fg::Vec<float, 8> x1_read[1];
    fg::Vec<float, 8> x2_read[1];
    float x0_before_edge[1];
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 8 * lane;
      if (at >= n) continue;
      const int i = n - 8 - at;
      x0_read[u] = fg::load_vector<8>(x0 + i);
      x1_read[u] = fg::load_vector<8>(x1 + i);
      x2_read[u] = fg::load_vector<8>(x2 + i);
      x0_before_edge[u] = i > 0 ? fg::load(x0 + (i - 1)) : float(0);
    }

    // Combine: a vector, then those of all threads in the order of the row.
    fg::ScanAffine<float> own[1];
    fg::ScanAffine<float> before[1];
    float a[1][8];
    float b[1][8];
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 8 * lane;
      if (at >= n) continue;
      const int i = n - 8 - at;
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = 7 - step;
        const int64_t here = i + k;
        const float x0_before = k ? x0_read[u][k - 1] : x0_before_edge[u];
        const bool isinf_x0 = fg::isinf(x0_read[u][k]);
        const float exp_value = expf(isinf_x0
                                         ? 0.0f
                                         : (here == 0 ? -fg::infinity<float>() : x0_before) - x0_read[u][k]);
        a[u][k] = isinf_x0 ? 0.0f : exp_value;
        b[u][k] = isinf_x0 ? 0.0f : exp_value * x1_read[u][k];
        own[u].add(a[u][k], b[u][k]);
      }
    }
    fg::scan_block<8, 1>(own, before, carry, place);

    // Write: each element on top of what stands before its vector.
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 8 * lane;
      if (at >= n) continue;
      const int i = n - 8 - at;
      fg::Vec<float, 8> result_found;
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = 7 - step;
        const bool isinf_x0 = fg::isinf(x0_read[u][k]);
        const float prod = (x1_read[u][k] + before[u].result()) * expf(isinf_x0
                                                                           ? 0.0f
                                                                           : x2_read[u][k] - x0_read[u][k]);
        result_found[k] = isinf_x0 ? 0.0f : prod;
        before[u].add(a[u][k], b[u][k]);
      }
      fg::store_vector<8>(result + i, result_found);
    }
  }
}
