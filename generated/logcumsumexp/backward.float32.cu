// fusegen emit logcumsumexp --which backward --dtype float32 --shape input=512,3072 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_scan.cuh"

// logcumsumexp, backward: scans, whose kernels come last
//   running_2[D0, D1] = input logsumexp along D1, without the element itself
//   d_running[D0, D1] = where(isinf(running), 0, exp(where(isinf(running), 0, running_2 - running))) and
//       where(isinf(running), 0, exp(where(isinf(running), 0, running_2 - running)) * d_out) as factors and terms
//       along D1 from the end, without the element itself

// logcumsumexp, backward epilogue                             declared in ops/scans.py
//   isinf_running = isinf(running)
//   exp_value_2 = exp(where(isinf_running, 0, input - running))
//   d_input = where(isinf_running, 0, (d_out + d_running) * exp_value_2)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void logcumsumexp_backward_epilogue_f32(const float* __restrict__ input_ptr,    // [D0, D1]
                                        const float* __restrict__ d_out_ptr,    // [D0, D1]
                                        const float* __restrict__ running_ptr,  // [D0, D1]
                                        const float* d_running_ptr,             // [D0, D1]
                                        float* __restrict__ d_input_ptr,        // [D0, D1]
                                        int n) {
  fg::wait_for_previous_kernel();
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto input_v = fg::load_vector<4>(input_ptr + at);
  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  const auto running_v = fg::load_vector<4>(running_ptr + at);
  const auto d_running_v = fg::load_vector<4>(d_running_ptr + at);
  fg::Vec<float, 4> d_input_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float input = input_v[k];
    const float d_out = d_out_v[k];
    const float running = running_v[k];
    const float d_running = d_running_v[k];
    const bool isinf_running = fg::isinf(running);
    const float exp_value_2 = expf(isinf_running ? 0.0f : input - running);
    d_input_v[k] = isinf_running ? 0.0f : (d_out + d_running) * exp_value_2;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
}

// scan: y[i] = log(exp(y[i - 1]) + exp(a[i])) with a = x0, and the result is y[i - 1]
// rows: a block for each, 4096 elements at a time
extern "C" __global__ __launch_bounds__(256)
void scan_logaddexp_exclusive_f32(const float* __restrict__ x0_ptr, float* __restrict__ result_ptr, int n,
                                  int64_t x0_stride0, int64_t result_stride0) {
  // Locate: a block for each row.
  const int row = blockIdx.x;
  const int lane = threadIdx.x;
  const int begin = 0, end = n;
  const int j0 = row;
  const float* x0 = x0_ptr + j0 * x0_stride0;
  float* result = result_ptr + j0 * result_stride0;

  fg::ScanLogAddExp<float> carry;
  int place = 0;
  for (int tile = begin; tile < end; tile += 4096) {
    // Read: neighbouring threads take neighbouring vectors, several of them at once.
    fg::Vec<float, 4> x0_read[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
      const int i = at;
      x0_read[u] = fg::load_vector<4>(x0 + i);
    }

    // Combine: a vector, then those of all threads in the order of the row.
    fg::ScanLogAddExp<float> own[4], before[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int k = step;
        own[u].add(x0_read[u][k]);
      }
    }
    fg::scan_block<8, 4>(own, before, carry, place);

    // Write: each element on top of what stands before its vector.
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
      const int i = at;
      fg::Vec<float, 4> found;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int k = step;
        found[k] = float(before[u].result());
        before[u].add(x0_read[u][k]);
      }
      fg::store_vector<4>(result + i, found);
    }
  }
}

// scan: y[i] = a[i] * y[i - 1] + b[i] with a = where(isinf(x0), 0, exp(where(isinf(x0), 0, x1 - x0))), b =
//     where(isinf(x0), 0, exp(where(isinf(x0), 0, x1 - x0)) * x2), and the result is y[i - 1], from the last element
// rows: a block for each, 1024 elements at a time
extern "C" __global__ __launch_bounds__(256)
void scan_affine_reverse_exclusive_f32(const float* x0_ptr, const float* x1_ptr, const float* x2_ptr,
                                       float* __restrict__ result_ptr, int n, int64_t x0_stride0,
                                       int64_t x1_stride0, int64_t x2_stride0, int64_t result_stride0) {
  fg::wait_for_previous_kernel();
  // Locate: a block for each row.
  const int row = blockIdx.x;
  const int lane = threadIdx.x;
  const int begin = 0, end = n;
  const int j0 = row;
  const float* x0 = x0_ptr + j0 * x0_stride0;
  const float* x1 = x1_ptr + j0 * x1_stride0;
  const float* x2 = x2_ptr + j0 * x2_stride0;
  float* result = result_ptr + j0 * result_stride0;

  fg::ScanAffine<float> carry;
  int place = 0;
  for (int tile = begin; tile < end; tile += 1024) {
    // Read: neighbouring threads take neighbouring vectors.
    fg::Vec<float, 4> x0_read[1];
    fg::Vec<float, 4> x1_read[1];
    fg::Vec<float, 4> x2_read[1];
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
      const int i = n - 4 - at;
      x0_read[u] = fg::load_vector<4>(x0 + i);
      x1_read[u] = fg::load_vector<4>(x1 + i);
      x2_read[u] = fg::load_vector<4>(x2 + i);
    }

    // Combine: a vector, then those of all threads in the order of the row.
    fg::ScanAffine<float> own[1], before[1];
    float a[1][4];
    float b[1][4];
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int k = 3 - step;
        a[u][k] = fg::isinf(x0_read[u][k])
                      ? 0.0f
                      : expf(fg::isinf(x0_read[u][k]) ? 0.0f : x1_read[u][k] - x0_read[u][k]);
        b[u][k] = fg::isinf(x0_read[u][k])
                      ? 0.0f
                      : expf(fg::isinf(x0_read[u][k]) ? 0.0f : x1_read[u][k] - x0_read[u][k]) * x2_read[u][k];
        own[u].add(a[u][k], b[u][k]);
      }
    }
    fg::scan_block<8, 1>(own, before, carry, place);

    // Write: each element on top of what stands before its vector.
#pragma unroll
    for (int u = 0; u < 1; ++u) {
      const int at = tile + 4 * (u * 256 + lane);
      if (at >= end) continue;
      const int i = n - 4 - at;
      fg::Vec<float, 4> found;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int k = 3 - step;
        found[k] = float(before[u].result());
        before[u].add(a[u][k], b[u][k]);
      }
      fg::store_vector<4>(result + i, found);
    }
  }
}
