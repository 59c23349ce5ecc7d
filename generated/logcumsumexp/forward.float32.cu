// fusegen emit logcumsumexp --which forward --dtype float32 --shape input=512,3072 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_scan.cuh"

// logcumsumexp, forward: scans by kernels of their own
//   out[D0, D1] = input logsumexp along D1

// scan: y[i] = log(exp(y[i - 1]) + exp(a[i])) with a = x0
// rows: a block for each, 4096 elements at a time
extern "C" __global__ __launch_bounds__(256)
void scan_logaddexp_f32(const float* __restrict__ x0_ptr, float* __restrict__ result_ptr, int n, int64_t x0_stride0,
                        int64_t result_stride0) {
  // Locate: a block for each row.
  const int row = blockIdx.x;
  const int lane = threadIdx.x;
  const int j0 = row;
  const float* x0 = x0_ptr + j0 * x0_stride0;
  float* result = result_ptr + j0 * result_stride0;

  fg::ScanLogAddExp<float> carry;
  int place = 0;
  for (int tile = 0; tile < n; tile += 4096) {
    // Read: neighbouring threads take neighbouring vectors, several of them at once.
    fg::Vec<float, 8> x0_read[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = tile + 8 * (u * 256 + lane);
      if (i >= n) continue;
      x0_read[u] = fg::load_vector<8>(x0 + i);
    }

    // Combine: a vector, then those of all threads in the order of the row.
    fg::ScanLogAddExp<float> own[2];
    fg::ScanLogAddExp<float> before[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = tile + 8 * (u * 256 + lane);
      if (i >= n) continue;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        own[u].add(x0_read[u][k]);
      }
    }
    fg::scan_block<8, 2>(own, before, carry, place);

    // Write: each element on top of what stands before its vector.
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int i = tile + 8 * (u * 256 + lane);
      if (i >= n) continue;
      fg::Vec<float, 8> result_found;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        before[u].add(x0_read[u][k]);
        result_found[k] = before[u].result();
      }
      fg::store_vector<8>(result + i, result_found);
    }
  }
}
