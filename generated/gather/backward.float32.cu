// fusegen emit gather --which backward --dtype float32 --dtype index=int64 --shape input=512,3072
//     --shape index=512,64 --arg dim=-1
#include "fusegen.cuh"

// gather, backward: scatters, whose kernels come last
//   d_input[D0, D2] = d_out added at chosen_index along D2, over [D1]

// gather, backward prologue                                   declared in ops/indexing.py
//   chosen_index = where(index < 0, index + D2, index)
// elementwise: 2 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void gather_backward_prologue_i64(const int64_t* __restrict__ the_index_ptr,  // [D0, D1]
                                  int64_t* __restrict__ chosen_index_ptr,     // [D0, D1]
                                  int64_t D2, int n) {
  // Locate: each thread owns 2 consecutive elements.
  const int at = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto the_index_v = fg::load_vector<2>(the_index_ptr + at);
  fg::Vec<int64_t, 2> chosen_index_v;

#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int64_t index_ = the_index_v[k];
    chosen_index_v[k] = index_ < 0 ? index_ + D2 : index_;
  }
  fg::store_vector<2>(chosen_index_ptr + at, chosen_index_v);
}

// scatter: result[line, places[line, i]]: each of a block's 16 threads adds up the updates of a line, in their order,
//     in shared memory
extern "C" __global__ __launch_bounds__(16)
void scatter_sum_i64_f32_f32(const int64_t* places_ptr, const float* updates_ptr, float* result_ptr, int lines, int n,
                             int size, int64_t places_stride0, int64_t places_step, int64_t updates_stride0,
                             int64_t updates_step, int64_t result_stride0, int64_t result_step) {
  fg::wait_for_previous_kernel();
  const int first = int(blockIdx.x) * 16;
  const int line = fg::at_most(int(first + threadIdx.x), lines - 1);
  const int j0 = line;
  const int64_t* places = places_ptr + j0 * places_stride0;
  const float* updates = updates_ptr + j0 * updates_stride0;
  using Held = float[3072][17];
  Held& held = fg::dynamic_shared<Held>();

  for (int place = 0; place < size; ++place) {
    held[place][threadIdx.x] = 0.0f;
  }

  // Several updates are read before the first is taken.
  int at = 0;
  for (; at + 16 <= n; at += 16) {
    int64_t place[16];
    float update[16];
#pragma unroll
    for (int u = 0; u < 16; ++u) {
      place[u] = fg::load(places + (at + u) * places_step);
      update[u] = fg::load(updates + (at + u) * updates_step);
    }
#pragma unroll
    for (int u = 0; u < 16; ++u) {
      if (0 <= place[u] && place[u] < size) held[place[u]][threadIdx.x] += update[u];
    }
  }
  for (; at < n; ++at) {
    const int64_t place = fg::load(places + at * places_step);
    const float update = fg::load(updates + at * updates_step);
    if (0 <= place && place < size) held[place][threadIdx.x] += update;
  }

  __syncthreads();
  for (int k = 0; k < 16; ++k) {
    if (first + k >= lines) break;
    const int there = first + k;
    const int j0 = there;
    float* result = result_ptr + j0 * result_stride0;
    for (int place = threadIdx.x; place < size; place += 16) {
      fg::store(result + place * result_step, held[place][k]);
    }
  }
}
