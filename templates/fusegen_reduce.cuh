// States of reductions, how the threads that share a result merge them, and nothing else. Part of fusegen.cuh.
#pragma once

namespace fg {

// -- states: empty, add(element), merge(other state), result() ------------------------------------------------------

template <typename T> FG_DEVICE T lowest() { return T(-infinity<T>()); }
template <typename T> FG_DEVICE T highest() { return infinity<T>(); }
#define FG_LIMITS(T, low, high)                       \
  template <> FG_DEVICE T lowest<T>() { return low; } \
  template <> FG_DEVICE T highest<T>() { return high; }
FG_LIMITS(bool, false, true)
FG_LIMITS(uint8_t, 0, 255)
FG_LIMITS(int8_t, -128, 127)
FG_LIMITS(int16_t, -32768, 32767)
FG_LIMITS(int32_t, -2147483647 - 1, 2147483647)
FG_LIMITS(int64_t, -9223372036854775807LL - 1, 9223372036854775807LL)
#undef FG_LIMITS

template <typename T> struct Maximum {
  T value = lowest<T>();
  FG_DEVICE void add(T x) { value = maximum(value, x); }
  FG_DEVICE void merge(const Maximum& other) { add(other.value); }
  FG_DEVICE T result() const { return value; }
};

template <typename T> struct Minimum {
  T value = highest<T>();
  FG_DEVICE void add(T x) { value = minimum(value, x); }
  FG_DEVICE void merge(const Minimum& other) { add(other.value); }
  FG_DEVICE T result() const { return value; }
};

template <typename T> struct Product {
  T value = T(1);
  FG_DEVICE void add(T x) { value = T(value * x); }
  FG_DEVICE void merge(const Product& other) { add(other.value); }
  FG_DEVICE T result() const { return value; }
};

// The sum of squared deviations from the mean (Welford; merged as Chan, Golub and LeVeque do).
template <typename T> struct Moments {
  T count = 0, mean = 0, deviation = 0;
  FG_DEVICE void add(T x) {
    count += 1;
    const T delta = x - mean;
    mean += delta / count;
    deviation += delta * (x - mean);
  }
  FG_DEVICE void merge(const Moments& other) {
    if (other.count == 0) return;
    const T total = count + other.count, share = other.count / total, delta = other.mean - mean;
    deviation += other.deviation + delta * delta * count * share;
    mean += delta * share;
    count = total;
  }
  FG_DEVICE T result() const { return deviation; }
};

// The sum of exponentials relative to the maximum, which is rescaled whenever the maximum grows.
template <typename T> struct SumExp {
  T top = lowest<T>(), sum = 0;
  FG_DEVICE void add(T x) { merge_scaled(x, T(1)); }
  FG_DEVICE void merge(const SumExp& other) {
    if (other.sum != 0) merge_scaled(other.top, other.sum);
  }
  FG_DEVICE void merge_scaled(T x, T times) {
    const T higher = maximum(top, x);
    sum = sum == 0 ? times * exp_of(x - higher) : sum * exp_of(top - higher) + times * exp_of(x - higher);
    top = higher;
  }
  static FG_DEVICE float exp_of(float x) { return expf(x); }
  static FG_DEVICE double exp_of(double x) { return exp(x); }
  FG_DEVICE T result() const { return sum; }
};

// -- merging the states of threads, always in the same order --------------------------------------------------------

// A state as words, which registers exchange and shared memory holds.
template <typename S> struct Stored {
  static constexpr int words = (sizeof(S) + 3) / 4;
  uint32_t word[words];
  FG_DEVICE void put(const S& state) {
    word[words - 1] = 0;
    memcpy(word, &state, sizeof(S));
  }
  FG_DEVICE S get() const {
    S state;
    memcpy(&state, word, sizeof(S));
    return state;
  }
};

template <typename S> FG_DEVICE S shuffle_xor(const S& state, int distance) {
  Stored<S> stored;
  stored.put(state);
#pragma unroll
  for (int i = 0; i < Stored<S>::words; ++i) {
    stored.word[i] = __shfl_xor_sync(0xffffffffu, stored.word[i], distance);
  }
  return stored.get();
}

// Lanes of a pair merge in the order of their numbers, so that both get the same bits.
template <int Lanes, typename S> FG_DEVICE S lanes_merge(S state) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) {
    S other = shuffle_xor(state, distance);
    if (threadIdx.x & distance) {
      other.merge(state);
      state = other;
    } else {
      state.merge(other);
    }
  }
  return state;
}

// State of a block of Threads (a multiple of 32), in the first thread.
template <int Threads, typename S> FG_DEVICE S block_merge(S state) {
  state = lanes_merge<32>(state);
  if (Threads == 32) return state;
  FUSEGEN_SHARED(Stored<S>, warp_states, [32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // an earlier reduction may still be reading warp_states
  if (lane == 0) warp_states[warp].put(state);
  __syncthreads();
  if (warp == 0) {
    state = lanes_merge<32>(lane < Threads / 32 ? warp_states[lane].get() : S());
  }
  return state;
}

// State over the rows (threadIdx.y) of a block of 32 columns, in row 0.
template <int Rows, typename S> FG_DEVICE S column_merge(S state) {
  FUSEGEN_SHARED(Stored<S>, states, [Rows][33]);
  __syncthreads();  // an earlier reduction may still be reading states
  states[threadIdx.y][threadIdx.x].put(state);
  __syncthreads();
#pragma unroll
  for (int half_rows = Rows / 2; half_rows > 0; half_rows /= 2) {
    if (threadIdx.y < half_rows) {
      state.merge(states[threadIdx.y + half_rows][threadIdx.x].get());
      states[threadIdx.y][threadIdx.x].put(state);
    }
    __syncthreads();
  }
  return state;
}

// The same for several results a thread.
template <int Rows, typename S, int N> FG_DEVICE void column_merge(S (&states)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) states[k] = column_merge<Rows>(states[k]);
}

}  // namespace fg
