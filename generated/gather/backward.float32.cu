// fusegen emit gather --which backward --dtype float32 --dtype index=int64 --shape input=512,3072
//     --shape index=512,64 --arg dim=-1
#include "fusegen.cuh"

#include "fusegen_scatter.cuh"

// gather, backward: scatters by kernels of their own
//   d_input[D0, D2] = d_out added at index along D2, over [D1]

// scatter: result[line, places[line, i]]: each of 8 threads adds up the updates of its line in shared memory, in the
//     order of i; 4 more warps read ahead
extern "C" __global__ __launch_bounds__(160)
void scatter_sum_i64_f32_f32(const int64_t* __restrict__ places_ptr, const float* __restrict__ updates_ptr,
                             float* __restrict__ result_ptr, int lines, int n, int size, int64_t places_stride0,
                             int64_t places_step, int64_t updates_stride0, int64_t updates_step,
                             int64_t result_stride0, int64_t result_step) {
  const int first = int(blockIdx.x) * 8;
  const int lane = int(threadIdx.x) % 8;
  const int line = fg::at_most(first + lane, lines - 1);
  const int j0 = line;
  const int64_t* places = places_ptr + j0 * places_stride0;
  const float* updates = updates_ptr + j0 * updates_stride0;
  using Held = float[3072][9];
  Held& held = fg::dynamic_shared<Held>();
  FUSEGEN_SHARED(int, place, [2][128][9]);
  FUSEGEN_SHARED(float, update, [2][128][9]);
  const int thread = (int(threadIdx.y) - 1) * 32 + int(threadIdx.x);  // among those that read
  const auto read = [&](const int begin) {
    const int into = begin / 128 % 2;
    int64_t there[8];
    float value[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int u = thread % 128;
      const int of = thread / 128 + k * 1;
      const int of_line = fg::at_most(first + of, lines - 1);
      const int at = begin + u;
      there[k] = at < n ? fg::load(places_ptr + of_line * places_stride0 + at * places_step) : fg::no_place();
      value[k] = at < n ? fg::load(updates_ptr + of_line * updates_stride0 + at * updates_step) : 0;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int u = thread % 128;
      const int of = thread / 128 + k * 1;
      const int64_t chosen = there[k] < 0 ? there[k] + size : there[k];
      place[into][u][of] = 0 <= chosen && chosen < size ? int(chosen) : -1;
      update[into][u][of] = value[k];
    }
  };

  const int own = int(threadIdx.y);  // among places
  for (int k = own; k < 8; k += 5) {
#pragma unroll 4
    for (int at = threadIdx.x; at < size; at += 32) {
      held[at][k] = 0.0f;
    }
  }
  if (threadIdx.y > 0) read(0);
  __syncthreads();
  for (int begin = 0; begin < n; begin += 128) {
    if (threadIdx.y == 0) {
      if (threadIdx.x < 8) {
        fg::take_updates<fg::Added, 128, 9>(&held[0][threadIdx.x], &place[begin / 128 % 2][0][threadIdx.x],
                                            &update[begin / 128 % 2][0][threadIdx.x]);
      }
    } else {
      if (begin + 128 < n) read(begin + 128);
    }
    __syncthreads();
  }

  for (int k = own; k < 8; k += 5) {
    if (first + k >= lines) break;
    const int there = first + k;
    const int j0 = there;
    float* result = result_ptr + j0 * result_stride0;
#pragma unroll 4
    for (int at = threadIdx.x; at < size; at += 32) {
      fg::store(result + at * result_step, held[at][k]);
    }
  }
}
