// fusegen emit cumsum --which backward --dtype bfloat16 --shape input=512,3072 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_scan.cuh"

// cumsum, backward: scans by kernels of their own
//   d_input[D0, D1] = d_out added up along D1 from the end

// scan: y[i] = y[i - 1] + a[i] with a = x0, from the last element
// rows: a block for each, 4096 elements at a time
extern "C" __global__ __launch_bounds__(256)
void scan_sum_reverse_bf16(const bf16* __restrict__ x0_ptr, bf16* __restrict__ result_ptr, int n, int64_t x0_stride0,
                           int64_t result_stride0) {
  // Locate: a block for each row.
  const int row = blockIdx.x;
  const int lane = threadIdx.x;
  const int j0 = row;
  const bf16* x0 = x0_ptr + j0 * x0_stride0;
  bf16* result = result_ptr + j0 * result_stride0;

  fg::ScanSum<float> carry;
  int place = 0;
  for (int tile = 0; tile < n; tile += 4096) {
    // Read: neighbouring threads take neighbouring vectors, several of them at once.
    fg::Vec<float, 8> x0_read[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int at = tile + 8 * (u * 256 + lane);
      if (at >= n) continue;
      const int i = n - 8 - at;
      x0_read[u] = fg::load_vector<8>(x0 + i);
    }

    // Combine: a vector, then those of all threads in the order of the row.
    fg::ScanSum<float> own[2];
    fg::ScanSum<float> before[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int at = tile + 8 * (u * 256 + lane);
      if (at >= n) continue;
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = 7 - step;
        own[u].add(x0_read[u][k]);
      }
    }
    fg::scan_block<8, 2>(own, before, carry, place);

    // Write: each element on top of what stands before its vector.
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int at = tile + 8 * (u * 256 + lane);
      if (at >= n) continue;
      const int i = n - 8 - at;
      fg::Vec<float, 8> result_found;
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const int k = 7 - step;
        before[u].add(x0_read[u][k]);
        result_found[k] = before[u].result();
      }
      fg::store_vector<8>(result + i, result_found);
    }
  }
}
