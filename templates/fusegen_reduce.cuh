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
  FG_DEVICE void add(T x) { value = times(value, x); }
  FG_DEVICE void merge(const Product& other) { add(other.value); }
  FG_DEVICE T result() const { return value; }
};

// Where the maximum (or minimum) stands: the first of several that are equal, and NaN before all numbers.
template <typename T, bool Most> struct First {
  T value = Most ? lowest<T>() : highest<T>();
  int64_t place = highest<int64_t>();
  FG_DEVICE void add(T x, int64_t at) {
    const bool is_nan = x != x, was_nan = value != value;
    const bool better = (Most ? x > value : x < value) | (is_nan & !was_nan);
    const bool as_good = (x == value) | (is_nan & was_nan);
    const bool taken = better | (as_good & (at < place));
    value = taken ? x : value;
    place = taken ? at : place;
  }
  FG_DEVICE void merge(const First& other) { add(other.value, other.place); }
  FG_DEVICE int64_t result() const { return place; }
};
template <typename T> using FirstMaximum = First<T, true>;
template <typename T> using FirstMinimum = First<T, false>;

// The sum of squared deviations from the mean. Elements come one by one (Welford's update), or twice where they are at
// hand: see() and saw() all, settle(), take() all. States merge as Chan, Golub and LeVeque do it.
// The mean is a number and what rounding took off it: far from zero, means differ by less than their last bit.
template <typename T> struct Moments {
  T count = 0, mean = 0, rest = 0, deviation = 0;
  FG_DEVICE void add(T x) {
    count += 1;
    const T delta = x - mean - rest;
    move(divide_by_count(delta, count));
    deviation += delta * (x - mean - rest);
  }
  FG_DEVICE void see(T x) { mean += x; }
  FG_DEVICE void saw(int elements) { count += T(elements); }
  FG_DEVICE void settle() { mean = count == 0 ? T(0) : divide_by_count(mean, count); }
  FG_DEVICE void take(T x) {
    const T away = x - mean;
    rest += away;
    deviation += away * away;
  }
  FG_DEVICE void take_fast(T x) { take(x); }
  FG_DEVICE void finish() {
    const T sum = rest, share = count == 0 ? T(0) : divide_by_count(sum, count);
    deviation -= sum * share;
    rest = 0;
    move(share);
  }
  FG_DEVICE void merge(const Moments& other) {
    if (other.count == 0) return;
    if (count == 0) {  // below, the difference to no mean at all would round what this one keeps
      *this = other;
      return;
    }
    const T total = count + other.count, share = divide_by_count(other.count, total);
    const T delta = other.mean - mean + (other.rest - rest);
    deviation += other.deviation + delta * delta * count * share;
    move(delta * share);
    count = total;
  }
  FG_DEVICE void move(T by) {
    const T step = rest + by, moved = mean + step;
    rest = step - (moved - mean);
    mean = moved;
  }
  FG_DEVICE T result() const { return deviation; }
  FG_DEVICE T partner() const { return mean * count + rest * count; }  // the sum
};

template <typename T> FG_DEVICE T smallest();
template <> FG_DEVICE float smallest<float>() { return -3.402823466e38f; }
template <> FG_DEVICE double smallest<double>() { return -1.7976931348623157e308; }
FG_DEVICE float exp_of(float x) { return expf(x); }
FG_DEVICE double exp_of(double x) { return exp(x); }

// The sum of exponentials relative to the maximum. Without elements, or with none above minus infinity, it is zero.
// Elements come one by one, relative to a base that moves up only where one is far above it; or twice where they are at
// hand: see() all, settle(), take() all. Differences to the base are not contracted with what x is computed by: what
// reads the sum computes them again.
template <typename T> struct SumExp {
  T top = lowest<T>(), base = smallest<T>(), sum = 0;
  FG_DEVICE void add(T x) {
    rise(x);
    sum += exp_of(sub_rn(x, base));
  }
  FG_DEVICE void add_fast(T x) {
    rise(x);
    sum += fast_exp_from_top(sub_rn(x, base));
  }
  FG_DEVICE void rise(T x) {
    top = maximum(top, x);
    if (x > base + T(8)) {
      sum *= exp_of(base - x);
      base = x;
    }
  }
  FG_DEVICE void see(T x) { top = maximum(top, x); }
  FG_DEVICE void settle() { base = top = maximum(top, smallest<T>()); }  // finite, so that exp(-inf - top) is zero
  FG_DEVICE void take(T x) { sum += exp_of(sub_rn(x, base)); }
  FG_DEVICE void take_fast(T x) { sum += fast_exp_from_top(sub_rn(x, base)); }
  FG_DEVICE void finish() {}
  FG_DEVICE void merge(const SumExp& other) {
    if (other.sum == 0) return;
    const T higher = maximum(top, other.top);
    sum = scaled_to(higher) + other.scaled_to(higher);
    move_to(higher);
  }
  FG_DEVICE void move_to(T higher) {  // the sum is relative to it
    top = higher;
    base = maximum(higher, smallest<T>());
  }
  FG_DEVICE T scaled_to(T higher) const { return sum == 0 ? sum : sum * exp_of(base - higher); }
  FG_DEVICE T result() const { return base == top ? sum : scaled_to(top); }
  FG_DEVICE T partner() const { return sum == 0 ? lowest<T>() : top; }  // the maximum
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

// Two numbers say it all.
template <typename T> struct Stored<SumExp<T>> {
  static constexpr int words = 2 * sizeof(T) / 4;
  uint32_t word[words];
  FG_DEVICE void put(const SumExp<T>& state) {
    const T pair[2] = {state.top, state.result()};
    memcpy(word, pair, sizeof(pair));
  }
  FG_DEVICE SumExp<T> get() const {
    T pair[2];
    memcpy(pair, word, sizeof(pair));
    SumExp<T> state;
    state.sum = pair[1];
    state.move_to(pair[0]);
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

// States of which many merge at once: what they have in common first, then plain sums.
template <int Lanes, typename T> FG_DEVICE SumExp<T> lanes_merge(SumExp<T> state) {
  Maximum<T> top;
  top.add(state.top);
  const T highest_top = lanes_merge<Lanes>(top).value;
  state.sum = lanes_sum<Lanes>(state.scaled_to(highest_top));
  state.move_to(highest_top);
  return state;
}
// Many at once, relative to one of the means: differences of means are small and exact where means are neither.
template <typename T> FG_DEVICE T away_from(const Moments<T>& state, T pivot) {
  return state.count == 0 ? T(0) : state.mean - pivot + state.rest;
}
template <typename T> FG_DEVICE Moments<T> around(T pivot, T count, T weighted, T deviation) {
  Moments<T> total;
  const T away = count == 0 ? T(0) : divide_by_count(weighted, count);
  total.count = count;
  total.mean = pivot;
  total.deviation = deviation - weighted * away;
  total.move(away);
  return total;
}
template <int Lanes, typename T> FG_DEVICE Moments<T> lanes_merge(const Moments<T>& state) {
  const int lane = (threadIdx.x + blockDim.x * threadIdx.y) % 32;
  const T pivot = __shfl_sync(0xffffffffu, state.mean, lane - lane % Lanes);  // the first lane has elements if any has
  const T count = lanes_sum<Lanes>(state.count), away = away_from(state, pivot), weighted = state.count * away;
  return around(pivot, count, lanes_sum<Lanes>(weighted), lanes_sum<Lanes>(state.deviation + weighted * away));
}

template <typename S> FG_DEVICE S merged(const Stored<S>* states, int count) {
  S total = states[0].get();
  for (int i = 1; i < count; ++i) total.merge(states[i].get());
  return total;
}
template <typename T> FG_DEVICE SumExp<T> merged(const Stored<SumExp<T>>* states, int count) {
  SumExp<T> total;
  for (int i = 0; i < count; ++i) total.top = maximum(total.top, states[i].get().top);
  for (int i = 0; i < count; ++i) total.sum += states[i].get().scaled_to(total.top);
  total.move_to(total.top);
  return total;
}
template <typename T> FG_DEVICE Moments<T> merged(const Stored<Moments<T>>* states, int count) {
  const T pivot = states[0].get().mean;
  T elements = 0, weighted = 0, deviation = 0;
#pragma unroll
  for (int i = 0; i < count; ++i) {
    const Moments<T> state = states[i].get();
    const T away = away_from(state, pivot);
    elements += state.count;
    weighted += state.count * away;
    deviation += state.deviation + state.count * away * away;
  }
  return around(pivot, elements, weighted, deviation);
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

// States over the rows (threadIdx.y) of a block of Across columns, in row 0; as many at a time as have room.
template <int Rows, int Across = 32, typename S, int N> FG_DEVICE void column_merge(S (&states)[N]) {
  constexpr int room = EXCHANGE_BYTES / int(Rows * (Across + 1) * sizeof(Stored<S>));
  constexpr int together = room < 1 ? 1 : room < N ? room
                                                   : N;
  FUSEGEN_SHARED(Stored<S>, of_rows, [together][Rows][Across + 1]);
#pragma unroll
  for (int first = 0; first < N; first += together) {
    const int count = N - first < together ? N - first : together;
    __syncthreads();  // an earlier reduction may still be reading of_rows
#pragma unroll
    for (int k = 0; k < count; ++k) of_rows[k][threadIdx.y][threadIdx.x].put(states[first + k]);
    __syncthreads();
#pragma unroll
    for (int half_rows = Rows / 2; half_rows > 0; half_rows /= 2) {
      if (threadIdx.y < half_rows) {
#pragma unroll
        for (int k = 0; k < count; ++k) {
          states[first + k].merge(of_rows[k][threadIdx.y + half_rows][threadIdx.x].get());
          of_rows[k][threadIdx.y][threadIdx.x].put(states[first + k]);
        }
      }
      __syncthreads();
    }
  }
}

// The same for one result a thread.
template <int Rows, int Across = 32, typename S> FG_DEVICE S column_merge(S state) {
  S states[] = {state};
  column_merge<Rows, Across>(states);
  return states[0];
}

}  // namespace fg
