// fusegen emit scatter --which backward --dtype float32 --dtype index=int64 --shape input=512,3072
//     --shape index=64,3072 --shape src=64,3072 --arg dim=0
#include "fusegen.cuh"

#include "fusegen_scatter.cuh"

// scatter, backward: scatters by kernels of their own
//   d_src[D1, D2] = factor_2 added at top along D1, over [D0]

// scatter, backward prologue                                  declared in ops/indexing.py
//   above_top = top >= 0
//   d_input = where(above_top, 0, d_out)
//   factor_2 = where(above_top, d_out, 0)
// elementwise: 4 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void scatter_backward_prologue_f32(const float* __restrict__ d_out_ptr,  // [D0, D2]
                                   const int64_t* __restrict__ top_ptr,  // [D0, D2]
                                   float* __restrict__ d_input_ptr,      // [D0, D2]
                                   float* __restrict__ factor_2_ptr,     // [D0, D2]
                                   int n) {
  // Locate: each thread owns 4 consecutive elements.
  const int at = 4 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;

  const auto d_out_v = fg::load_vector<4>(d_out_ptr + at);
  const auto top_v = fg::load_vector<4>(top_ptr + at);
  fg::Vec<float, 4> d_input_v;
  fg::Vec<float, 4> factor_2_v;

#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float d_out = d_out_v[k];
    const int64_t top = top_v[k];
    const bool above_top = top >= 0;
    d_input_v[k] = above_top ? 0.0f : d_out;
    factor_2_v[k] = above_top ? d_out : 0.0f;
  }
  fg::store_vector<4>(d_input_ptr + at, d_input_v);
  fg::store_vector<4>(factor_2_ptr + at, factor_2_v);
}

// scatter: result[line, places[line, i]]: each of 8 threads adds up the updates of its line in shared memory, in the
//     order of i; 4 more warps read ahead
extern "C" __global__ __launch_bounds__(160)
void scatter_sum_i64_f32_f32(const int64_t* places_ptr, const float* updates_ptr, float* result_ptr, int lines, int n,
                             int size, int64_t places_stride0, int64_t places_step, int64_t updates_stride0,
                             int64_t updates_step, int64_t result_stride0, int64_t result_step) {
  fg::wait_for_previous_kernel();
  const int first = int(blockIdx.x) * 8;
  const int lane = int(threadIdx.x) % 8;
  const int line = fg::at_most(first + lane, lines - 1);
  const int j0 = line;
  const int64_t* places = places_ptr + j0 * places_stride0;
  const float* updates = updates_ptr + j0 * updates_stride0;
  float* result = result_ptr + j0 * result_stride0;
  using Held = float[64][8];
  Held& held = fg::dynamic_shared<Held>();
  FUSEGEN_SHARED(int, place, [2][128][8]);
  FUSEGEN_SHARED(float, update, [2][128][8]);
  const int thread = (int(threadIdx.y) - 1) * 32 + int(threadIdx.x);  // among those that read
  const auto read = [&](const int begin) {
    const int into = begin / 128 % 2;
    int64_t there[8];
    float value[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int u = thread / 8 + k * 16;
      const int at = begin + u;
      there[k] = at < n ? fg::load(places + at * places_step) : fg::no_place();
      value[k] = at < n ? fg::load(updates + at * updates_step) : 0;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int u = thread / 8 + k * 16;
      const int64_t chosen = there[k] < 0 ? there[k] + size : there[k];
      place[into][u][lane] = 0 <= chosen && chosen < size ? int(chosen) : -1;
      update[into][u][lane] = value[k];
    }
  };

  const int own = int(threadIdx.y) * 4 + int(threadIdx.x) / 8;  // among places
#pragma unroll 4
  for (int at = own; at < size; at += 20) {
    held[at][lane] = 0.0f;
  }
  if (threadIdx.y > 0) read(0);
  __syncthreads();
  for (int begin = 0; begin < n; begin += 128) {
    if (threadIdx.y == 0) {
      if (threadIdx.x < 8) {
        fg::take_updates<fg::Added, 128, 8>(&held[0][threadIdx.x], &place[begin / 128 % 2][0][threadIdx.x],
                                            &update[begin / 128 % 2][0][threadIdx.x]);
      }
    } else {
      if (begin + 128 < n) read(begin + 128);
    }
    __syncthreads();
  }

#pragma unroll 4
  for (int at = own; at < size; at += 20) {
    if (first + lane < lines) fg::store(result + at * result_step, held[at][lane]);
  }
}
