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

// The sum of exponentials relative to the maximum, which is rescaled whenever the maximum grows. Without elements, or
// with none above minus infinity, the sum is zero.
template <typename T> struct SumExp {
  T top = lowest<T>(), sum = 0;
  FG_DEVICE void add(T x) {
    if (x != lowest<T>()) merge_scaled(x, T(1));
  }
  FG_DEVICE void see(T x) { top = maximum(top, x); }
  FG_DEVICE void settle() { top = maximum(top, smallest<T>()); }  // finite, so that exp(-inf - top) is zero
  FG_DEVICE void take(T x) { sum += exp_of(x - top); }
  FG_DEVICE void take_fast(T x) { sum += fast_exp_from_top(x - top); }
  FG_DEVICE void finish() {}
  FG_DEVICE void merge(const SumExp& other) {
    if (other.sum != 0) merge_scaled(other.top, other.sum);
  }
  FG_DEVICE void merge_scaled(T x, T times) {
    const T higher = maximum(top, x);
    sum = scaled_to(higher) + times * exp_of(x - higher);
    top = higher;
  }
  FG_DEVICE T scaled_to(T higher) const { return sum == 0 ? sum : sum * exp_of(top - higher); }
  FG_DEVICE T result() const { return sum; }
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
  state.top = highest_top;
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

// State over the rows (threadIdx.y) of a block of Across columns, in row 0.
template <int Rows, int Across = 32, typename S> FG_DEVICE S column_merge(S state) {
  FUSEGEN_SHARED(Stored<S>, states, [Rows][Across + 1]);
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
template <int Rows, int Across = 32, typename S, int N> FG_DEVICE void column_merge(S (&states)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) states[k] = column_merge<Rows, Across>(states[k]);
}

// -- rows: Threads (threadIdx.x) share each of Rows rows (threadIdx.y), and all of them get the result ---------------

struct Add {
  template <int Lanes, typename T> static FG_DEVICE T lanes(T value) { return lanes_sum<Lanes>(value); }
  template <typename T> static FG_DEVICE T all(const Stored<T>* values, int count) {
    T total = values[0].get();
#pragma unroll
    for (int i = 1; i < count; ++i) total += values[i].get();
    return total;
  }
};
struct Merge {
  template <int Lanes, typename S> static FG_DEVICE S lanes(S state) { return lanes_merge<Lanes>(state); }
  template <typename S> static FG_DEVICE S all(const Stored<S>* states, int count) { return merged(states, count); }
};

// What the blocks of a cluster exchange partial results through. Each block writes its own into the memory of all others;
// the stores themselves announce their arrival, so that nobody waits for anybody's stores to global memory. Two buffers
// and two barriers take turns: whoever writes into one has everybody's word that it has been read.
template <int Cluster> struct Link {
  uint32_t round = 0;
#if !defined(FUSEGEN_EMULATOR) && __CUDA_ARCH__ >= 900
  uint64_t* barriers;
  FG_DEVICE Link() {
    __shared__ uint64_t arrivals[2];
    barriers = arrivals;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&arrivals[0])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&arrivals[1])) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_arrive();
  }
  static FG_DEVICE uint32_t address(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
  static FG_DEVICE uint32_t address_in(const void* shared, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(shared)), "r"(rank));
    return there;
  }
  // Thread `rank` sends `value` to the block of that rank.
  template <typename S> FG_DEVICE void send(Stored<S>* shared, int rank, const Stored<S>& value) {
    const uint32_t there = address_in(shared, rank), barrier = address_in(&barriers[round & 1], rank);
#pragma unroll
    for (int i = 0; i < Stored<S>::words; ++i) {
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there + 4 * i),
                   "r"(value.word[i]), "r"(barrier)
                   : "memory");
    }
  }
  // Until `bytes` have come from all blocks together.
  FG_DEVICE void receive(int bytes) {
    const uint32_t barrier = address(&barriers[round & 1]), phase = (round >> 1) & 1;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                   : "memory");
    }
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(barrier), "r"(phase)
          : "memory");
    }
    ++round;
  }
#else
  FG_DEVICE Link() { cluster_arrive(); }
  template <typename S> FG_DEVICE void send(Stored<S>* shared, int rank, const Stored<S>& value) {
    store_remote(shared, rank, value);
  }
  FG_DEVICE void receive(int) {
    cluster_arrive();
    cluster_wait();
    ++round;
  }
#endif
  // All blocks have started; before the first exchange.
  FG_DEVICE void ready() { cluster_wait(); }
};

// How: Add or Merge. Site: one number for each call in a kernel, so that a second call need not wait until all have read
// what the first exchanged. All threads of the block get the result.
template <typename How, int Threads, int Rows, int Site, typename S, int N> FG_DEVICE void combine_block(S (&values)[N]) {
  constexpr int lanes = Threads < 32 ? Threads : 32, warps = Threads / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::template lanes<lanes>(values[i]);
  if (warps <= 1) return;
  FUSEGEN_SHARED(Stored<S>, of_warps, [N][Rows][warps > 1 ? warps : 1]);
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int i = 0; i < N; ++i) of_warps[i][threadIdx.y][threadIdx.x / 32].put(values[i]);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::all(of_warps[i][threadIdx.y], warps);
}
template <typename How, int Site, int Cluster, typename S, int N>
FG_DEVICE void combine_cluster(Link<Cluster>& link, S (&values)[N]) {
  FUSEGEN_SHARED(Stored<S>, of_blocks, [2][N][Cluster]);
  const int turn = link.round & 1;
  if (threadIdx.x < Cluster) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Stored<S> own;
      own.put(values[i]);
      link.send(&of_blocks[turn][i][cluster_rank()], int(threadIdx.x), own);
    }
  }
  link.receive(int(sizeof(of_blocks[0])));
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::all(of_blocks[turn][i], Cluster);
}

#define FG_IN_PLACE(combine)      \
  S values[] = {first, more...};  \
  combine;                        \
  int i = 0;                      \
  first = values[i++];            \
  ((more = values[i++]), ...);

template <int Threads, int Rows, int Site, typename S, typename... More> FG_DEVICE void row_sum(S& first, More&... more) {
  FG_IN_PLACE((combine_block<Add, Threads, Rows, Site>(values)))
}
template <int Threads, int Rows, int Site, typename S, typename... More> FG_DEVICE void row_merge(S& first, More&... more) {
  FG_IN_PLACE((combine_block<Merge, Threads, Rows, Site>(values)))
}
template <int Threads, int Site, int Cluster, typename S, typename... More>
FG_DEVICE void cluster_sum(Link<Cluster>& link, S& first, More&... more) {
  FG_IN_PLACE((combine_block<Add, Threads, 1, Site>(values), combine_cluster<Add, Site>(link, values)))
}
template <int Threads, int Site, int Cluster, typename S, typename... More>
FG_DEVICE void cluster_merge(Link<Cluster>& link, S& first, More&... more) {
  FG_IN_PLACE((combine_block<Merge, Threads, 1, Site>(values), combine_cluster<Merge, Site>(link, values)))
}

// Columns: Rows of threads (threadIdx.y) share each of Across columns (threadIdx.x), and all of them get the result.
struct Highest {
  template <typename T> static FG_DEVICE T all(const Stored<T>* values, int count) {
    T top = values[0].get();
#pragma unroll
    for (int i = 1; i < count; ++i) top = maximum(top, values[i].get());
    return top;
  }
};
template <typename How, int Rows, int Across, int Site, typename S, int N> FG_DEVICE void combine_column(S (&values)[N]) {
  FUSEGEN_SHARED(Stored<S>, of_rows, [N][Across][Rows + 1]);  // neighbouring columns begin in neighbouring banks
#pragma unroll
  for (int i = 0; i < N; ++i) of_rows[i][threadIdx.x][threadIdx.y].put(values[i]);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::all(of_rows[i][threadIdx.x], Rows);
}
#define FG_COLUMNS(name, How)                                                                                    \
  template <int Rows, int Across, int Site, typename S, typename... More> FG_DEVICE void name(S& first, More&... more) { \
    FG_IN_PLACE((combine_column<How, Rows, Across, Site>(values)))                                               \
  }
FG_COLUMNS(columns_sum, Add)
FG_COLUMNS(columns_maximum, Highest)
FG_COLUMNS(columns_merge, Merge)
#undef FG_COLUMNS
#undef FG_IN_PLACE

// Vectors (or numbers) of the rows of a block added up, in row 0.
template <int Threads, int Rows, typename T> FG_DEVICE T rows_sum_of(T value) {
  FUSEGEN_SHARED(T, of_rows, [Rows][Threads]);
  __syncthreads();  // an earlier sum may still be reading of_rows
  of_rows[threadIdx.y][threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.y == 0) {
#pragma unroll
    for (int row = 1; row < Rows; ++row) value += of_rows[row][threadIdx.x];
  }
  return value;
}
template <int Threads, int Rows, typename T, int N> FG_DEVICE void rows_sum(T (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = rows_sum_of<Threads, Rows>(values[i]);
}
template <int Threads, int Rows, typename T, int V, int N> FG_DEVICE void rows_sum(Vec<T, V> (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int k = 0; k < V; ++k) values[i][k] = rows_sum_of<Threads, Rows>(values[i][k]);
  }
}

}  // namespace fg
