// fusegen emit scatter --which forward --dtype bfloat16 --dtype index=int64 --shape input=512,3072
//     --shape index=64,3072 --shape src=64,3072 --arg dim=0
#include "fusegen.cuh"

#include "fusegen_scatter.cuh"

#include "fusegen_places.cuh"

// scatter, forward: scatters by kernels of their own
//   top[D0, D2] = factor_2 maximum at index along D0, over [D1]

// scatter, forward prologue                                   declared in ops/indexing.py
//   factor_2 = index(d1)
// elementwise: 2 elements a thread, everything lies side by side
extern "C" __global__ __launch_bounds__(256)
void scatter_forward_prologue_i64(int64_t* __restrict__ factor_2_ptr,  // [D1]
                                  int n) {
  // Locate: each thread owns 2 consecutive elements.
  const int at = 2 * (int(blockIdx.x) * 256 + threadIdx.x);
  if (at >= n) return;
  const int j0 = at;
  fg::Vec<int64_t, 2> factor_2_v;

#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int64_t index_d1 = j0 + k;
    factor_2_v[k] = index_d1;
  }
  fg::store_vector<2>(factor_2_ptr + at, factor_2_v);
}

// scatter: result[line, places[line, i]]: each of 8 threads takes the maximum of the updates of its line in shared
//     memory, in the order of i; 4 more warps read ahead
extern "C" __global__ __launch_bounds__(160)
void scatter_max_i64_i64_i64(const int64_t* places_ptr, const int64_t* updates_ptr, int64_t* result_ptr, int lines,
                             int n, int size, int64_t places_stride0, int64_t places_step,
                             int64_t updates_stride0, int64_t updates_step, int64_t result_stride0,
                             int64_t result_step, int64_t position_stride0, int64_t position_step) {
  fg::wait_for_previous_kernel();
  const int first = int(blockIdx.x) * 8;
  const int lane = int(threadIdx.x) % 8;
  const int line = fg::at_most(first + lane, lines - 1);
  const int j0 = line;
  const int64_t* places = places_ptr + j0 * places_stride0;
  const int64_t* updates = updates_ptr + j0 * updates_stride0;
  int64_t* result = result_ptr + j0 * result_stride0;
  using Held = int64_t[512][8];
  Held& held = fg::dynamic_shared<Held>();
  FUSEGEN_SHARED(int, place, [2][128][8]);
  FUSEGEN_SHARED(int64_t, update, [2][128][8]);
  const int64_t position = j0 * position_stride0;
  const int thread = (int(threadIdx.y) - 1) * 32 + int(threadIdx.x);  // among those that read
  const auto read = [&](const int begin) {
    const int into = begin / 128 % 2;
    int64_t there[8];
    int64_t value[8];
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
      const int64_t chosen = fg::within(there[k] < 0 ? there[k] + size : there[k], size,
                                        position + (begin + u) * position_step, 0);
      place[into][u][lane] = 0 <= chosen && chosen < size ? int(chosen) : -1;
      update[into][u][lane] = value[k];
    }
  };

  const int own = int(threadIdx.y) * 4 + int(threadIdx.x) / 8;  // among places
#pragma unroll 4
  for (int at = own; at < size; at += 20) {
    held[at][lane] = int64_t(-9223372036854775807LL - 1);
  }
  if (threadIdx.y > 0) read(0);
  __syncthreads();
  for (int begin = 0; begin < n; begin += 128) {
    if (threadIdx.y == 0) {
      if (threadIdx.x < 8) {
        fg::take_updates<fg::Largest, 128, 8>(&held[0][threadIdx.x], &place[begin / 128 % 2][0][threadIdx.x],
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

// scatter, forward epilogue                                   declared in ops/indexing.py
//   chosen_top = where(top < 0, top + D1, top)
//   total = sum[d1](where(factor_2 == chosen_top, src, 0))
//   out = where(top >= 0, total, input)
// column: 2048 neighbouring results a block, reduced over D1
extern "C" __global__ __launch_bounds__(256, 4)
void scatter_forward_epilogue_bf16(const bf16* __restrict__ input_ptr,  // [D0, D2]
                                   const bf16* __restrict__ src_ptr,    // [D1, D2]
                                   const int64_t* top_ptr,              // [D0, D2]
                                   const int64_t* factor_2_ptr,         // [D1]
                                   bf16* __restrict__ out_ptr,          // [D0, D2]
                                   int64_t D1, int m, int n, fg::Divisor n1, int input_stride0, int src_stride2,
                                   int top_stride0, int out_stride0) {
  fg::wait_for_previous_kernel();
  // A thread owns 8 neighbouring results and adds up their elements by itself.
  const int result = int(blockIdx.x) * 2048 + 8 * threadIdx.x;
  const bool inside = result < m;
  int rest = result;
  const int j1 = fg::take(rest, n1);
  const int j0 = rest;

  fg::Vec<float, 8> total_v = {};
  if (inside) {
    const auto top_v = fg::load_vector<8>(top_ptr + j0 * top_stride0 + j1);
    fg::Vec<int64_t, 8> chosen_top_v;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int64_t top = top_v[k];
      const int64_t chosen_top = top < 0 ? top + D1 : top;
      chosen_top_v[k] = chosen_top;
    }
    // Neighbouring elements go to one thread, where terms of opposite signs meet before they are large.
    int at = 4 * threadIdx.y;
    for (; at + 3 < n; at += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int j2 = at + i;
        const auto src_v = fg::load_vector<8>(src_ptr + j1 + j2 * src_stride2);
        const int64_t factor_2 = fg::load(factor_2_ptr + j2);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int64_t chosen_top = chosen_top_v[k];
          const float src = src_v[k];
          total_v[k] += factor_2 == chosen_top ? src : 0.0f;
        }
      }
    }
#pragma unroll 1
    for (; at < n; ++at) {
      const int j2 = at;
      const auto src_v = fg::load_vector<8>(src_ptr + j1 + j2 * src_stride2);
      const int64_t factor_2 = fg::load(factor_2_ptr + j2);
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int64_t chosen_top = chosen_top_v[k];
        const float src = src_v[k];
        total_v[k] += factor_2 == chosen_top ? src : 0.0f;
      }
    }
  }

  if (inside) {
    const auto input_v = fg::load_vector<8>(input_ptr + j0 * input_stride0 + j1);
    const auto top_v = fg::load_vector<8>(top_ptr + j0 * top_stride0 + j1);
    fg::Vec<float, 8> out_v;
    for (int k = 0; k < 8; ++k) {
      const float total = total_v[k];
      const float input = input_v[k];
      const int64_t top = top_v[k];
      out_v[k] = top >= 0 ? total : input;
    }
    fg::store_vector<8>(out_ptr + (j0 * out_stride0 + j1), out_v);
  }
}
