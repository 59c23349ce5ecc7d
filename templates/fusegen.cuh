// What generated kernels call: vectors, half types, index arithmetic, block sums and the scalar functions that CUDA
// does not have. Everything that is an instruction of the hardware stands behind a small named function here, so that
// kernels read well and the emulator can supply its own (fusegen_emulator.h). Self-contained: compiling a kernel reads
// no other header.
#pragma once

#ifdef FUSEGEN_EMULATOR
#include "fusegen_emulator.h"
#else
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define FUSEGEN_SHARED(type, name, extent) __shared__ type name extent
#endif

struct half {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

namespace fg {

#define FG_DEVICE __device__ __forceinline__

// -- half types: read as float, rounded to nearest even once --------------------------------------------------------

template <typename T> FG_DEVICE void unpack(uint32_t pair, float& low, float& high);
template <> FG_DEVICE void unpack<bf16>(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}
#ifdef FUSEGEN_EMULATOR
template <> FG_DEVICE void unpack<half>(uint32_t pair, float& low, float& high) {
  low = fusegen_half_bits_to_float(uint16_t(pair));
  high = fusegen_half_bits_to_float(uint16_t(pair >> 16));
}
FG_DEVICE float to_float(half x) { return fusegen_half_bits_to_float(x.bits); }
FG_DEVICE float to_float(bf16 x) { return fusegen_bfloat16_bits_to_float(x.bits); }
template <typename T> FG_DEVICE T from_float(float x);
template <> FG_DEVICE half from_float<half>(float x) { return {fusegen_float_to_half_bits(x)}; }
template <> FG_DEVICE bf16 from_float<bf16>(float x) { return {fusegen_float_to_bfloat16_bits(x)}; }
template <typename T> FG_DEVICE uint32_t pack(float low, float high) {
  return uint32_t(from_float<T>(low).bits) | uint32_t(from_float<T>(high).bits) << 16;
}
#else
template <> FG_DEVICE void unpack<half>(uint32_t pair, float& low, float& high) {
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}" : "=f"(low), "=f"(high) : "r"(pair));
}
FG_DEVICE float to_float(half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
FG_DEVICE float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
template <typename T> FG_DEVICE T from_float(float x);
template <> FG_DEVICE half from_float<half>(float x) {
  half y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <> FG_DEVICE bf16 from_float<bf16>(float x) {
  bf16 y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
  const uint32_t bits = __float_as_uint(x);
  y.bits = x != x ? 0x7fff : uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
#endif
  return y;
}
template <typename T> FG_DEVICE uint32_t pack(float low, float high);
template <> FG_DEVICE uint32_t pack<half>(float low, float high) {
  uint32_t y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
  y = uint32_t(from_float<half>(low).bits) | uint32_t(from_float<half>(high).bits) << 16;
#endif
  return y;
}
template <> FG_DEVICE uint32_t pack<bf16>(float low, float high) {
  uint32_t y;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
  y = uint32_t(from_float<bf16>(low).bits) | uint32_t(from_float<bf16>(high).bits) << 16;
#endif
  return y;
}
#endif
// A byte as a float, by two cheap instructions: the GPU's conversion takes its turn with exponentials and the like. Beside
// 2^23 a number has ones as its last bits.
template <typename T> FG_DEVICE float byte_to_float(T x) {
  const bool negative = T(-1) < T(0);
  return __uint_as_float(0x4B000000u | uint8_t(negative ? x ^ 0x80 : x)) - (negative ? 8388736.0f : 8388608.0f);
}
template <typename T> FG_DEVICE float round_to(float x) { return to_float(from_float<T>(x)); }

// The type arithmetic happens in, and the conversions at the edge of memory.
template <typename T> struct Compute {
  using type = T;
  static FG_DEVICE T widen(T x) { return x; }
  static FG_DEVICE T narrow(T x) { return x; }
};
template <> struct Compute<half> {
  using type = float;
  static FG_DEVICE float widen(half x) { return to_float(x); }
  static FG_DEVICE half narrow(float x) { return from_float<half>(x); }
};
template <> struct Compute<bf16> {
  using type = float;
  static FG_DEVICE float widen(bf16 x) { return to_float(x); }
  static FG_DEVICE bf16 narrow(float x) { return from_float<bf16>(x); }
};
template <typename T> using compute_t = typename Compute<T>::type;

template <typename T> FG_DEVICE compute_t<T> load(const T* pointer) { return Compute<T>::widen(*pointer); }

// The element ``place`` of ``size`` that lie ``step`` apart, and so on along other axes; zero where there is none.
template <typename T> FG_DEVICE compute_t<T> gather(const T* first) { return load(first); }
template <typename T, typename... Others>
FG_DEVICE compute_t<T> gather(const T* first, int64_t place, int64_t size, int64_t step, Others... others) {
  return 0 <= place && place < size ? gather(first + place * step, others...) : compute_t<T>(0);
}

// The element at ``pointer`` where its place is one of ``size``, and so on along other axes; zero where there is none.
template <typename T> FG_DEVICE compute_t<T> load_within(const T* pointer) { return load(pointer); }
template <typename T, typename... Others>
FG_DEVICE compute_t<T> load_within(const T* pointer, int64_t place, int64_t size, Others... others) {
  return 0 <= place && place < size ? load_within(pointer, others...) : compute_t<T>(0);
}

template <typename T, typename V> FG_DEVICE void store(T* pointer, V value) {
  *pointer = Compute<T>::narrow(compute_t<T>(value));
}

}  // namespace fg

#include "fusegen_vector.cuh"

namespace fg {

// -- one launch for many tensors ------------------------------------------------------------------------------------

// The last member that begins at ``block`` or before; those that a launch does not have never begin.
template <int places> FG_DEVICE int member_of(const int (&first_block)[places], int block) {
  int member = 0;
#pragma unroll
  for (int step = 1024; step > 0; step /= 2) {
    if (step < places && member + step < places && first_block[member + step] <= block) member += step;
  }
  return member;
}

// -- index arithmetic: division by a number known at launch ---------------------------------------------------------

// Exact for 0 <= i < 2^31: magic = ceil(2^(31 + s) / value) with 2^s >= value.
struct Divisor {
  uint32_t magic;
  uint32_t shift;
  int value;
};
struct Divisor64 {
  int64_t value;
};
// Takes the coordinate along an axis of size n off a row-major position, fast axis first.
FG_DEVICE int take(int& position, const Divisor& n) {
  const int quotient = int((uint64_t(uint32_t(position)) * n.magic) >> n.shift);
  const int coordinate = position - quotient * n.value;
  position = quotient;
  return coordinate;
}
FG_DEVICE int64_t take(int64_t& position, const Divisor64& n) {
  const int64_t coordinate = position % n.value;
  position /= n.value;
  return coordinate;
}
// Moves a coordinate along an axis of size n on by one if there is more. True where it begins again: then the next
// slower one has more. Without branches, so that the loads of several elements are under way at once.
template <typename I, typename D> FG_DEVICE bool advance(I& coordinate, const D& n, bool more) {
  coordinate += more;
  const bool wraps = coordinate == n.value;
  coordinate = wraps ? I(0) : coordinate;
  return wraps;
}
template <typename I> FG_DEVICE I at_most(I i, I last) { return i < last ? i : last; }

// -- sums in a fixed order ------------------------------------------------------------------------------------------

template <int Lanes, typename T> FG_DEVICE T lanes_sum(T value) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
template <typename T> FG_DEVICE T warp_sum(T value) { return lanes_sum<32>(value); }

// A sum that a thread takes over many turns, in four chains: the fewer numbers one has taken in, the less it rounds off
// the next. What comes in is a vector's sum already, in which neighbours of opposite signs have met.
template <typename T> struct Chains {
  T sums[4] = {};
  FG_DEVICE void add(T x) {
    const T next = sums[0] + x;
    sums[0] = sums[1];
    sums[1] = sums[2];
    sums[2] = sums[3];
    sums[3] = next;
  }
  FG_DEVICE T total() const { return (sums[0] + sums[1]) + (sums[2] + sums[3]); }
};

// Sum over a block of Threads (a multiple of 32), in the first thread.
template <int Threads, typename T> FG_DEVICE T block_sum(T value) {
  value = warp_sum(value);
  if (Threads == 32) return value;
  FUSEGEN_SHARED(T, warp_sums, [32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();  // an earlier sum may still be reading warp_sums
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) value = warp_sum(lane < Threads / 32 ? warp_sums[lane] : T(0));
  return value;
}

// Shared memory of one exchange between rows of threads: beyond it, numbers are exchanged one after the other.
constexpr int EXCHANGE_BYTES = 9 * 1024;

// Sum over the rows (threadIdx.y) of a block of Across columns, in row 0; of several results a thread, as many at a time
// as have room.
template <int Rows, int Across = 32, typename T, int N> FG_DEVICE Vec<T, N> column_sum(Vec<T, N> values) {
  constexpr int room = EXCHANGE_BYTES / int(Rows * (Across + 1) * sizeof(T));
  constexpr int together = room < 1 ? 1 : room < N ? room
                                                   : N;
  FUSEGEN_SHARED(T, sums, [together][Rows][Across + 1]);
#pragma unroll
  for (int first = 0; first < N; first += together) {
    const int count = N - first < together ? N - first : together;
    __syncthreads();  // an earlier sum may still be reading sums
#pragma unroll
    for (int k = 0; k < count; ++k) sums[k][threadIdx.y][threadIdx.x] = values[first + k];
    __syncthreads();
#pragma unroll
    for (int half_rows = Rows / 2; half_rows > 0; half_rows /= 2) {
      if (threadIdx.y < half_rows) {
#pragma unroll
        for (int k = 0; k < count; ++k) sums[k][threadIdx.y][threadIdx.x] += sums[k][threadIdx.y + half_rows][threadIdx.x];
      }
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < count; ++k) values[first + k] = sums[k][0][threadIdx.x];
  }
  return values;
}

// The same for one result a thread.
template <int Rows, int Across = 32, typename T> FG_DEVICE T column_sum(T value) {
  Vec<T, 1> values;
  values[0] = value;
  return column_sum<Rows, Across>(values)[0];
}

// -- segments of a row: threads leave what each of their vectors adds side by side, a few at a time add up a segment ---

template <typename I> struct Range {
  I first, last;
  FG_DEVICE bool any() const { return first < last; }
};

// Which vectors of a block that has the elements from `begin` to `end` belong to the segment of that number.
template <int Vector, typename I> FG_DEVICE Range<I> part_of_segment(I segment, I size, I begin, I end) {
  const I from = segment * size - begin, to = at_most(I(segment * size + size), end) - begin;
  return {(from > 0 ? from : 0) / Vector, to / Vector};
}

template <int Lanes, typename T, typename I> FG_DEVICE T segment_sum(const T* parts, const Range<I>& part) {
  T sum = 0;
#pragma unroll 4
  for (I i = part.first + threadIdx.x % Lanes; i < part.last; i += Lanes) sum += parts[i];
  return lanes_sum<Lanes>(sum);
}

// What a block has of a segment, and zeros up to the `next` share, which another block leaves.
template <typename T, typename I> FG_DEVICE void store_share(T* target, I apart, int share, int next, T value) {
  target[share * apart] = value;
#pragma unroll 1
  for (int empty = share + 1; empty < next; ++empty) target[empty * apart] = 0;
}

// -- shared memory beyond what a kernel can declare: as much as its launch asks for ------------------------------------

template <typename T> FG_DEVICE T& dynamic_shared() {
#ifdef FUSEGEN_EMULATOR
  return *reinterpret_cast<T*>(fusegen_dynamic_shared());
#else
  extern __shared__ uint4 fusegen_memory[];
  return *reinterpret_cast<T*>(fusegen_memory);
#endif
}
// What lies behind something there, at the next address that the widest vectors may have.
template <typename T, typename Before> FG_DEVICE T& behind(Before& before) {
  return *reinterpret_cast<T*>(reinterpret_cast<char*>(&before) + (sizeof(Before) + 15) / 16 * 16);
}

// -- kernels that follow each other: from sm_90 on, the next one may start while the one before drains ---------------

// The launch says whether it may (programmatic dependent launch); without it, this does nothing. Blocks of the next
// kernel begin when all of this one's have ended; letting them begin with ``griddepcontrol.launch_dependents`` was slower
// wherever it made a difference (25.4 us against 21.7 for three small sums in a row).
// Until the kernel before has ended, and with it those before that one: they wait too. What they wrote is seen from
// here on, but not through a pointer that is const and __restrict__: such loads may be moved, up to before this.
FG_DEVICE void wait_for_previous_kernel() {
#ifdef FUSEGEN_EMULATOR
  fusegen_await_previous_kernel();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// -- clusters: up to 16 neighbouring blocks that can store into each other's shared memory, from sm_90 on -----------

#ifdef FUSEGEN_EMULATOR
FG_DEVICE int cluster_rank() { return fusegen_cluster_rank(); }
FG_DEVICE void cluster_arrive(fusegen_emulator::Site site = fusegen_emulator::site("cluster_arrive()")) {
  fusegen_cluster_arrive(site);
}
FG_DEVICE void cluster_wait(fusegen_emulator::Site site = fusegen_emulator::site("cluster_wait()")) {
  fusegen_cluster_wait(site);
}
template <typename T>
FG_DEVICE void store_remote(T* shared, int rank, T value,
                            fusegen_emulator::Site site = fusegen_emulator::site("store_remote()")) {
  fusegen_store_remote(site, shared, rank, &value, sizeof value);
}
#elif __CUDA_ARCH__ >= 900
// After __launch_bounds__: `blocks` neighbours in x are a cluster, and gridDim.x is a multiple of that.
#define FUSEGEN_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)

// This block's place in its cluster, from 0.
FG_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// A barrier of all threads of the cluster's blocks, in two halves, so that a thread can do something else in between.
// Remote stores before the one half are seen after the other. Outside of divergent branches, and always in pairs.
FG_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
FG_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// A store of 2^k bytes to an address of the cluster's shared memory.
template <int Bytes> struct StoreCluster;
template <> struct StoreCluster<1> {
  using Word = uint8_t;
  static FG_DEVICE void one(uint32_t address, Word word) {
    asm volatile("st.shared::cluster.u8 [%0], %1;" ::"r"(address), "r"(uint32_t(word)) : "memory");
  }
};
template <> struct StoreCluster<2> {
  using Word = uint16_t;
  static FG_DEVICE void one(uint32_t address, Word word) {
    asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(address), "h"(word) : "memory");
  }
};
template <> struct StoreCluster<4> {
  using Word = uint32_t;
  static FG_DEVICE void one(uint32_t address, Word word) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
  }
};
template <> struct StoreCluster<8> {
  using Word = uint64_t;
  static FG_DEVICE void one(uint32_t address, Word word) {
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address), "l"(word) : "memory");
  }
};

// Stores `value` where block `rank` of the cluster has the variable that is at `shared` in this block. Between two
// cluster barriers: before the first one a block may not have started, after the last one it may be gone.
template <typename T> FG_DEVICE void store_remote(T* shared, int rank, T value) {
  using Store = StoreCluster<(alignof(T) < 8 ? alignof(T) : 8)>;  // the widest that the address surely suits
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(uint32_t(__cvta_generic_to_shared(shared))), "r"(rank));
  typename Store::Word words[sizeof(T) / sizeof(typename Store::Word)];
  memcpy(words, &value, sizeof value);
#pragma unroll
  for (int k = 0; k < int(sizeof words / sizeof words[0]); ++k) Store::one(address + k * sizeof words[0], words[k]);
}
#else
// Every block is a cluster of its own, whatever the kernel says: its generator must not count on more here.
#define FUSEGEN_CLUSTER(blocks)
FG_DEVICE int cluster_rank() { return 0; }
FG_DEVICE void cluster_arrive() { __syncthreads(); }
FG_DEVICE void cluster_wait() {}
template <typename T> FG_DEVICE void store_remote(T* shared, int, T value) { *shared = value; }
#endif

}  // namespace fg

#include "fusegen_math.cuh"
#include "fusegen_random.cuh"
#include "fusegen_reduce.cuh"
#include "fusegen_rows.cuh"
#include "fusegen_trig.cuh"
