// Vectors: up to 16 bytes in one access, and what half types look like in between. Part of fusegen.cuh.
#pragma once

namespace fg {

// -- vectors: up to 16 bytes in one access --------------------------------------------------------------------------

template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T lane[N];
  FG_DEVICE T& operator[](int k) { return lane[k]; }
  FG_DEVICE const T& operator[](int k) const { return lane[k]; }
};

template <typename T, int N> struct Widen {
  static FG_DEVICE Vec<compute_t<T>, N> all(const Vec<T, N>& raw) {
    Vec<compute_t<T>, N> values;
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = Compute<T>::widen(raw[k]);
    return values;
  }
};
// Two halves come in one register, and are taken apart there.
template <typename T, int N> struct WidenPairs {
  static FG_DEVICE Vec<float, N> all(const Vec<T, N>& raw) {
    Vec<float, N> values;
#pragma unroll
    for (int k = 0; k + 1 < N; k += 2) {
      unpack<T>(uint32_t(raw[k].bits) | uint32_t(raw[k + 1].bits) << 16, values[k], values[k + 1]);
    }
    if (N % 2) values[N - 1] = to_float(raw[N - 1]);
    return values;
  }
};
template <int N> struct Widen<half, N> : WidenPairs<half, N> {};
template <int N> struct Widen<bf16, N> : WidenPairs<bf16, N> {};

// The same as it lies in memory, to be widened where it is used. Words, not halves: a register holds two of those, and
// moves them together. Less than a word (two bools) takes one, so that no pointer to memory may be cast to it.
template <typename T, int N> constexpr bool whole_words = sizeof(T) * N % 4 == 0;
template <typename T, int N>
struct alignas(sizeof(T) * N < 4 ? 4 : sizeof(T) * N < 16 ? sizeof(T) * N : 16) Raw {
  static constexpr int words = (sizeof(T) * N + 3) / 4;
  uint32_t word[words];
};
// What lies at `pointer`, to be accessed as one vector. The emulator checks that the address suits it, as a GPU does.
template <typename V, typename T> FG_DEVICE V& vector_at(T* pointer) {
#ifdef FUSEGEN_EMULATOR
  fusegen_require_aligned(pointer, alignof(V));
#endif
  return *reinterpret_cast<V*>(pointer);
}
// All words in one access. Left to itself the compiler may read 16 bytes of shared memory word by word, where they are
// needed: four times the accesses, and each of them to a quarter of the banks.
template <typename T, int N> FG_DEVICE Raw<T, N> at_once(const Raw<T, N>& there) {
#ifndef FUSEGEN_EMULATOR
  if constexpr (sizeof(there) == 16) {
    const uint4 words = *reinterpret_cast<const uint4*>(&there);
    Raw<T, N> raw;
    raw.word[0] = words.x, raw.word[1] = words.y, raw.word[2] = words.z, raw.word[3] = words.w;
    return raw;
  }
  if constexpr (sizeof(there) == 8) {
    const uint2 words = *reinterpret_cast<const uint2*>(&there);
    Raw<T, N> raw;
    raw.word[0] = words.x, raw.word[1] = words.y;
    return raw;
  }
#endif
  return there;
}
template <typename T, int N> FG_DEVICE void put_at_once(T* pointer, const Raw<T, N>& raw) {
#ifndef FUSEGEN_EMULATOR
  if constexpr (sizeof(raw) == 16) {
    *reinterpret_cast<uint4*>(pointer) = uint4{raw.word[0], raw.word[1], raw.word[2], raw.word[3]};
    return;
  }
  if constexpr (sizeof(raw) == 8) {
    *reinterpret_cast<uint2*>(pointer) = uint2{raw.word[0], raw.word[1]};
    return;
  }
#endif
  vector_at<Raw<T, N>>(pointer) = raw;
}
template <int N, typename T> FG_DEVICE Raw<T, N> load_raw(const T* pointer) {
  if constexpr (whole_words<T, N>) return vector_at<const Raw<T, N>>(pointer);
  const Vec<T, N> values = vector_at<const Vec<T, N>>(pointer);  // a copy: one access, not N
  Raw<T, N> raw;
  memcpy(raw.word, &values, sizeof values);
  return raw;
}
#if !defined(FUSEGEN_EMULATOR) && __CUDA_ARCH__ >= 800
template <bool Cached, int N, typename T> FG_DEVICE void copy_async(Raw<T, N>* shared, const T* pointer) {
  const uint32_t address = uint32_t(__cvta_generic_to_shared(shared));
  if constexpr (sizeof(T) * N >= 16) {  // and 16 at most
#pragma unroll
    for (int at = 0; at < N; at += 16 / sizeof(T)) {
      const uint32_t piece = address + at * sizeof(T);
      if constexpr (Cached) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(piece), "l"(pointer + at) : "memory");
      } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(piece), "l"(pointer + at) : "memory");
      }
    }
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(pointer), "n"(sizeof(T) * N) : "memory");
  }
}
#endif
// The same into shared memory, where it arrives while the thread does something else; each thread awaits its own.
template <int N, typename T> FG_DEVICE void load_async(Raw<T, N>* shared, const T* pointer) {
  if constexpr (!whole_words<T, N>) {  // it copies 4 bytes at least
    *shared = load_raw<N>(pointer);
    return;
  }
#ifdef FUSEGEN_EMULATOR
  fusegen_copy_async(shared, &vector_at<const Raw<T, N>>(pointer));
#elif __CUDA_ARCH__ < 800
  *shared = load_raw<N>(pointer);
#else
  copy_async<false>(shared, pointer);
#endif
}
// What others read as well comes through the first cache: of a few bytes that all multiprocessors ask for again and again,
// the second one's part that has them would be the slowest thing on the GPU.
template <int N, typename T> FG_DEVICE void load_async_cached(Raw<T, N>* shared, const T* pointer) {
#if !defined(FUSEGEN_EMULATOR) && __CUDA_ARCH__ >= 800
  if constexpr (whole_words<T, N>) {
    copy_async<true>(shared, pointer);
    return;
  }
#endif
  load_async(shared, pointer);
}
FG_DEVICE void await_loads() {
#ifdef FUSEGEN_EMULATOR
  fusegen_await_copies();
#elif __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// What was read from shared memory is read again from here on: registers are for something else meanwhile.
FG_DEVICE void read_again() { asm volatile("" ::: "memory"); }
template <typename T, int N> struct WidenRaw {
  static FG_DEVICE Vec<compute_t<T>, N> all(const Raw<T, N>& raw) {
    Vec<T, N> values;
    memcpy(&values, raw.word, sizeof(T) * N);
    return Widen<T, N>::all(values);
  }
};
template <typename T, int N> struct WidenRawPairs {
  static FG_DEVICE Vec<float, N> all(const Raw<T, N>& raw) {
    Vec<float, N> values;
#pragma unroll
    for (int k = 0; k + 1 < N; k += 2) unpack<T>(raw.word[k / 2], values[k], values[k + 1]);
    return values;
  }
};
template <int N> struct WidenRaw<half, N> : WidenRawPairs<half, N> {};
template <int N> struct WidenRaw<bf16, N> : WidenRawPairs<bf16, N> {};
template <typename T, int N> FG_DEVICE Vec<compute_t<T>, N> widen(const Raw<T, N>& raw) {
  return WidenRaw<T, N>::all(at_once(raw));
}

// N elements from `pointer`, whose address suits an access of that width.
template <int N, typename T> FG_DEVICE Vec<compute_t<T>, N> load_vector(const T* pointer) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) return widen(vector_at<const Raw<T, N>>(pointer));
  const Vec<T, N> raw = vector_at<const Vec<T, N>>(pointer);  // a copy: one access, not N
  return Widen<T, N>::all(raw);
}

// A vector at the place ``place`` of ``size`` that lie ``step`` apart, and so on; zeros where there is none.
template <int N, typename T> FG_DEVICE Vec<compute_t<T>, N> gather(const T* first) { return load_vector<N>(first); }
template <int N, typename T, typename... Others>
FG_DEVICE Vec<compute_t<T>, N> gather(const T* first, int64_t place, int64_t size, int64_t step, Others... others) {
  if (0 <= place && place < size) return gather<N>(first + place * step, others...);
  Vec<compute_t<T>, N> zeros;
#pragma unroll
  for (int k = 0; k < N; ++k) zeros[k] = 0;
  return zeros;
}

// A vector of elements whose place is one of ``size``, and so on; zeros where there is none.
template <int N, typename T> FG_DEVICE Vec<compute_t<T>, N> load_within(const T* first) { return load_vector<N>(first); }
template <int N, typename T, typename... Others>
FG_DEVICE Vec<compute_t<T>, N> load_within(const T* first, int64_t place, int64_t size, Others... others) {
  if (0 <= place && place < size) return load_within<N>(first, others...);
  Vec<compute_t<T>, N> zeros;
#pragma unroll
  for (int k = 0; k < N; ++k) zeros[k] = 0;
  return zeros;
}

// Elements i .. i + N - 1 of n; the last vector may overhang, and reads as zero there.
template <int N, typename T, typename I> FG_DEVICE Vec<compute_t<T>, N> load(const T* pointer, I i, I n) {
  if (i + N <= n) return load_vector<N>(pointer + i);
  Vec<compute_t<T>, N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = i + k < n ? Compute<T>::widen(pointer[i + k]) : compute_t<T>(0);
  return values;
}

// The same without a promise about the address.
template <int N, typename T, typename I> FG_DEVICE Vec<compute_t<T>, N> load_unaligned(const T* pointer, I i, I n) {
  Vec<compute_t<T>, N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = i + k < n ? Compute<T>::widen(pointer[i + k]) : compute_t<T>(0);
  return values;
}

template <typename T, int N> struct Narrow {
  static FG_DEVICE Vec<T, N> all(const Vec<compute_t<T>, N>& values) {
    Vec<T, N> raw;
#pragma unroll
    for (int k = 0; k < N; ++k) raw[k] = Compute<T>::narrow(values[k]);
    return raw;
  }
};
// Two halves are rounded and packed by one instruction.
template <typename T, int N> struct NarrowPairs {
  static FG_DEVICE Vec<T, N> all(const Vec<float, N>& values) {
    union {
      Vec<uint32_t, (N + 1) / 2> words;
      Vec<T, N> raw;
    };
#pragma unroll
    for (int k = 0; k < N / 2; ++k) words[k] = pack<T>(values[2 * k], values[2 * k + 1]);
    if (N % 2) raw[N - 1] = from_float<T>(values[N - 1]);
    return raw;
  }
};
template <int N> struct Narrow<half, N> : NarrowPairs<half, N> {};
template <int N> struct Narrow<bf16, N> : NarrowPairs<bf16, N> {};
template <typename T> constexpr bool packs = false;
template <> constexpr bool packs<half> = true;
template <> constexpr bool packs<bf16> = true;

// Halves as the words that two are packed into: as a structure of halves, the compiler may store each by itself.
template <int N, typename T> FG_DEVICE void store_vector(T* pointer, const Vec<compute_t<T>, N>& values) {
  if constexpr (packs<T> && N % 2 == 0) {
    Raw<T, N> raw;
#pragma unroll
    for (int k = 0; k < N / 2; ++k) raw.word[k] = pack<T>(values[2 * k], values[2 * k + 1]);
    put_at_once(pointer, raw);
  } else {
    vector_at<Vec<T, N>>(pointer) = Narrow<T, N>::all(values);
  }
}

// Without a promise about the address. What is computed of no element may be no number of its dtype (a bool that was never
// set), so only those are narrowed that there are; halves come in pairs.
template <int N, typename T, typename I>
FG_DEVICE void store_unaligned(T* pointer, I i, I n, const Vec<compute_t<T>, N>& values) {
  if constexpr (packs<T>) {
    const Vec<T, N> raw = Narrow<T, N>::all(values);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i + k < n) pointer[i + k] = raw[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (i + k < n) pointer[i + k] = Compute<T>::narrow(values[k]);
    }
  }
}
template <int N, typename T, typename I>
FG_DEVICE void store(T* pointer, I i, I n, const Vec<compute_t<T>, N>& values) {
  if (i + N <= n) {
    store_vector<N>(pointer + i, values);
  } else {
    store_unaligned<N>(pointer, i, n, values);
  }
}
// -- rows that begin anywhere: single elements before the first aligned vector and after the last --------------------

// Elements from `row` to the first address aligned for vectors of N.
template <int N, typename T> FG_DEVICE int to_aligned(const T* row) {
  return int((N - reinterpret_cast<uint64_t>(row) / sizeof(T) % N) % N);
}
// Where the last of the vectors ends that begin `head` elements into a row of n.
template <int N, typename I> FG_DEVICE I last_vector_end(int head, I n) { return n <= head ? n : n - (n - head) % N; }
// The element at one of the row's ends that is thread i's, or -1: fewer than 2 N are outside of vectors.
template <typename I> FG_DEVICE I end_element(int i, int head, I end, I n) {
  const I at = i < head ? I(i) : i - head + end;
  return at < n ? at : I(-1);
}
// Elements i .. i + N - 1 of a row, whose address may suit no vector: out of the aligned vectors around them, where the row
// has those. The threads of a warp have the same distance to an aligned address.
FG_DEVICE uint32_t word_across(uint32_t low, uint32_t high, uint32_t bits) {
  return uint32_t((uint64_t(high) << 32 | low) >> bits);
}
template <int N, typename T, typename I> FG_DEVICE Raw<T, N> load_raw_across(const T* row, I i, I n) {
  constexpr int width = sizeof(T) * N < 16 ? sizeof(T) * N : 16;
  const int distance = int(reinterpret_cast<uint64_t>(row + i) % width), before = distance / int(sizeof(T));
  if (distance == 0) return load_raw<N>(row + i);
  Raw<T, N> found;
  constexpr int each = 16 / int(sizeof(T)), pieces = N / each, count = 4 * pieces + 4;
  if (pieces > 0 && before <= i && i - before + N + each <= n) {
    const Raw<T, each>* around = &vector_at<const Raw<T, each>>(row + i - before);
    uint32_t words[count];
#pragma unroll
    for (int piece = 0; piece <= pieces; ++piece) {
      const Raw<T, each> four = around[piece];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[4 * piece + i] = four.word[i];
    }
    const uint32_t bits = uint32_t(distance) % 4 * 8;
    switch (distance / 4) {
#define FG_FROM(first)                                                                                              \
  for (int i = 0; i < 4 * pieces; ++i)                                                                              \
    found.word[i] = word_across(words[first + i], words[first + i + 1 < count ? first + i + 1 : 0], bits); \
  break
      case 0: FG_FROM(0);
      case 1: FG_FROM(1);
      case 2: FG_FROM(2);
      default: FG_FROM(3);
#undef FG_FROM
    }
    return found;
  }
  Vec<T, N> values;
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = row[i + k];
  memcpy(found.word, &values, sizeof values);
  return found;
}

}  // namespace fg
