// What kernels call that CUDA has built in: barriers, warp collectives, bits, floating point, half types as bits.
// Part of fusegen_emulator.h.
#pragma once

// ---- what kernels call: barriers, warp collectives -------------------------------------------------------------

#undef assert
#define assert(condition)                                                                                            \
  ((condition)                                                                                                       \
       ? void(0)                                                                                                     \
       : fusegen_emulator::fail(fusegen_emulator::kAssertion, "thread (%u, %u, %u): assertion `%s` failed at %s:%d", \
                                threadIdx.x, threadIdx.y, threadIdx.z, #condition, __FILE__, __LINE__))
inline void __trap() { fusegen_emulator::fail(fusegen_emulator::kAssertion, "__trap()"); }

#ifdef FUSEGEN_EMULATOR_RACES
inline void __threadfence() { fusegen_emulator::fence(); }
#else
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif
inline void __threadfence_block() {}

inline void __syncthreads(fusegen_emulator::Site site = fusegen_emulator::site("__syncthreads()")) {
  fusegen_emulator::wait_barrier(site);
}

// A barrier of its own for the threads of each threadIdx.y (PTX: bar.sync of a number and a count).
inline void fusegen_sync_row(fusegen_emulator::Site site = fusegen_emulator::site("row_barrier()")) {
  fusegen_emulator::wait_row(site);
}

inline void __syncwarp(unsigned mask = ~0u, fusegen_emulator::Site site = fusegen_emulator::site("__syncwarp()")) {
  fusegen_emulator::wait_warp(site, mask);
}

inline FUSEGEN_UNCHECKED unsigned __ballot_sync(unsigned mask, int predicate,
                              fusegen_emulator::Site site = fusegen_emulator::site("__ballot_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate != 0, 0).votes;
}

inline FUSEGEN_UNCHECKED int __any_sync(unsigned mask, int predicate,
                      fusegen_emulator::Site site = fusegen_emulator::site("__any_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate != 0, 0).votes != 0;
}

inline FUSEGEN_UNCHECKED int __all_sync(unsigned mask, int predicate,
                      fusegen_emulator::Site site = fusegen_emulator::site("__all_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate == 0, 0).votes == 0;
}

namespace fusegen_emulator {

inline int lane_index() { return int((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32); }

template <class T>
FUSEGEN_UNCHECKED T exchange(const Site& site, unsigned mask, T value, int source, int width) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  if (width < 1 || width > 32 || width & (width - 1)) {
    fail(kAssertion, "%s at %s:%d: width %d is not a power of two up to 32", site.what, site.file, site.line, width);
  }
  uint64_t sent = 0;
  memcpy(&sent, &value, sizeof value);
  const uint64_t received = wait_collective(site, mask, sent, source).received;
  memcpy(&value, &received, sizeof value);
  return value;
}

}  // namespace fusegen_emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              fusegen_emulator::Site site = fusegen_emulator::site("__shfl_sync()")) {
  const int lane = fusegen_emulator::lane_index(), first = lane & ~(width - 1);
  return fusegen_emulator::exchange(site, mask, value, first | (source & (width - 1)), width);
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 fusegen_emulator::Site site = fusegen_emulator::site("__shfl_up_sync()")) {
  const int lane = fusegen_emulator::lane_index();
  const bool inside = delta <= unsigned(lane & (width - 1));  // beyond its segment a lane keeps its own value
  return fusegen_emulator::exchange(site, mask, value, inside ? lane - int(delta) : lane, width);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   fusegen_emulator::Site site = fusegen_emulator::site("__shfl_down_sync()")) {
  const int lane = fusegen_emulator::lane_index();
  const bool inside = delta < unsigned(width - (lane & (width - 1)));
  return fusegen_emulator::exchange(site, mask, value, inside ? lane + int(delta) : lane, width);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flips, int width = 32,
                  fusegen_emulator::Site site = fusegen_emulator::site("__shfl_xor_sync()")) {
  const int lane = fusegen_emulator::lane_index(), source = (lane ^ flips) & 31;
  const bool inside = source <= (lane | (width - 1));  // lower segments can be read, higher ones cannot
  return fusegen_emulator::exchange(site, mask, value, inside ? source : lane, width);
}

// Clusters, as fusegen.cuh calls them.
inline int fusegen_cluster_rank() { return int(fusegen_emulator::current_rank()); }
inline void fusegen_cluster_arrive(const fusegen_emulator::Site& site) { fusegen_emulator::arrive_at_cluster(site); }
inline void fusegen_cluster_wait(const fusegen_emulator::Site& site) { fusegen_emulator::wait_for_cluster(site); }
__forceinline__ void fusegen_store_remote(const fusegen_emulator::Site& site, void* shared, int rank, const void* value,
                                          size_t bytes) {
  fusegen_emulator::store_remote(site, shared, rank, value, bytes);
}
__forceinline__ void fusegen_send(const fusegen_emulator::Site& site, void* shared, int rank, const void* value,
                                  size_t bytes, uint32_t round) {
  fusegen_emulator::send_message(site, shared, rank, value, bytes, round);
}
inline void fusegen_receive(const fusegen_emulator::Site& site, int64_t bytes, uint32_t round) {
  fusegen_emulator::receive_messages(site, bytes, round);
}

// Asynchronous copies, and kernels that start early: here they are done, and have ended, at once.
#ifdef FUSEGEN_EMULATOR_RACES
template <class T>
__forceinline__ void fusegen_copy_async(T* target, const T* source) {
  fusegen_emulator::copy_async(target, source, sizeof(T));
}
inline void fusegen_await_copies() { fusegen_emulator::await_copies(); }
inline void fusegen_await_previous_kernel() { fusegen_emulator::await_previous_kernel(); }
#else
template <class T>
__forceinline__ void fusegen_copy_async(T* target, const T* source) {
  *target = *source;
}
inline void fusegen_await_copies() {}
inline void fusegen_await_previous_kernel() {}
#endif

// ---- memory, bits, integers --------------------------------------------------------------------------------------

// A GPU refuses an access at an address that does not suit it.
inline FUSEGEN_UNCHECKED void fusegen_require_aligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  fusegen_emulator::fail(fusegen_emulator::kMisaligned,
                         "thread (%u, %u, %u) accesses a vector at %p, at no multiple of %zu bytes", threadIdx.x,
                         threadIdx.y, threadIdx.z, address, bytes);
}

// What accesses memory for a kernel is part of it, so that reports name the kernel's line.

template <class T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcs(const T* address) {
  return *address;
}
template <class T>
__forceinline__ T __ldcg(const T* address) {
  return *address;
}
template <class T, class U>
__forceinline__ void __stcs(T* address, const U& value) {
  *address = value;
}
template <class T, class U>
__forceinline__ void __stcg(T* address, const U& value) {
  *address = value;
}

namespace fusegen_emulator {

template <class To, class From>
To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

#ifdef FUSEGEN_EMULATOR_RACES
// One OS thread runs all threads, and none of them stops in here.
template <class T, class Update>
FUSEGEN_UNCHECKED T update_alone(T* address, Update update) {
  const T old = *address;
  *address = update(old);
  return old;
}
template <class T, class Update>
__forceinline__ T atomic_update(T* address, Update update) {
  check_atomic(address, sizeof(T));
  return update_alone(address, update);
}
#else
template <class T, class Update>
T atomic_update(T* address, Update update) {
  T old, changed;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do changed = update(old);
  while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}
#endif

}  // namespace fusegen_emulator

template <class T, class U>
__forceinline__ T atomicAdd(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return T(old + T(v)); });
}
template <class T, class U>
__forceinline__ T atomicMax(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return old < T(v) ? T(v) : old; });
}
template <class T, class U>
__forceinline__ T atomicMin(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return T(v) < old ? T(v) : old; });
}
template <class T, class U>
__forceinline__ T atomicExch(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T) { return T(v); });
}
template <class T>
__forceinline__ T atomicCAS(T* p, T expected, T v) {
  return fusegen_emulator::atomic_update(p, [=](T old) { return old == expected ? v : old; });
}

inline int __float_as_int(float x) { return fusegen_emulator::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return fusegen_emulator::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return fusegen_emulator::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return fusegen_emulator::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return fusegen_emulator::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return fusegen_emulator::bit_cast<double>(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(int64_t(a) * b >> 32); }
inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}

// For floats these are fmin and fmax, as in CUDA: a NaN loses.
template <class A, class B>
auto min(A a, B b) -> decltype(a + b) {
  typedef decltype(a + b) T;
  if constexpr (T(0.5) != T(0)) return fmin(T(a), T(b));
  return T(b) < T(a) ? T(b) : T(a);
}
template <class A, class B>
auto max(A a, B b) -> decltype(a + b) {
  typedef decltype(a + b) T;
  if constexpr (T(0.5) != T(0)) return fmax(T(a), T(b));
  return T(a) < T(b) ? T(b) : T(a);
}

// ---- floating point ----------------------------------------------------------------------------------------------

namespace fusegen_emulator {

// |x| <= 1/2 solves erf(y) = x, the rest erfc(y) = 1 - x, which is exact there and keeps its digits near 1.
inline double inverse_erf(double x) {
  const double size = fabs(x);
  if (!(size < 1)) return size == 1 ? copysign(HUGE_VAL, x) : NAN;
  const double log_term = log1p(-size * size), half = 4.330746750799873 + log_term / 2;  // Winitzki's first guess
  double y = sqrt(fmax(0, sqrt(half * half - log_term / 0.147) - half));
  for (int step = 0; step < 3; ++step) {  // Halley's method triples the digits
    const double error = size <= 0.5 ? erf(y) - size : (1 - size) - erfc(y);
    const double newton = error / (1.1283791670955126 * exp(-y * y));
    y -= newton / (1 + y * newton);
  }
  return copysign(y, x);
}

// In the tails the smaller of x and 1 - x, which is exact, is solved for, so that its digits are kept.
inline double inverse_normal(double x) {
  const double tail = fmin(x, 1 - x);
  if (!(tail > 0)) return tail == 0 ? copysign(HUGE_VAL, x - 0.5) : NAN;
  if (tail >= 0.25) return 1.4142135623730951 * inverse_erf(2 * x - 1);
  const double t = sqrt(-2 * log(tail));  // Abramowitz and Stegun 26.2.23: three digits
  double y = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308)));
  for (int step = 0; step < 3; ++step) {  // Halley's method triples the digits
    const double newton = (0.5 * erfc(y * 0.7071067811865476) - tail) / (0.3989422804014327 * exp(-y * y / 2));
    y += newton / (1 - y * newton / 2);
  }
  return copysign(y, x - 0.5);
}

}  // namespace fusegen_emulator

// Macros, because some C libraries declare functions of these names and some do not.
#define rsqrt(x) fusegen_emulator_rsqrt(x)
#define rsqrtf(x) fusegen_emulator_rsqrtf(x)
#define exp10(x) fusegen_emulator_exp10(x)
#define exp10f(x) fusegen_emulator_exp10f(x)
#define sincos(x, s, c) fusegen_emulator_sincos(x, s, c)
#define sincosf(x, s, c) fusegen_emulator_sincosf(x, s, c)
inline double fusegen_emulator_rsqrt(double x) { return 1.0 / sqrt(x); }
inline float fusegen_emulator_rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float fusegen_emulator_rsqrt(float x) { return 1.0f / sqrtf(x); }
inline double fusegen_emulator_exp10(double x) { return pow(10.0, x); }
inline float fusegen_emulator_exp10f(float x) { return powf(10.0f, x); }
inline void fusegen_emulator_sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
inline void fusegen_emulator_sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline float rcbrtf(float x) { return float(1.0 / cbrt(double(x))); }
inline double erfinv(double x) { return fusegen_emulator::inverse_erf(x); }
inline float erfinvf(float x) { return float(fusegen_emulator::inverse_erf(double(x))); }
inline double normcdfinv(double x) { return fusegen_emulator::inverse_normal(x); }
inline float normcdfinvf(float x) { return float(fusegen_emulator::inverse_normal(double(x))); }

inline float __expf(float x) { return expf(x); }
inline float __exp2f(float x) { return exp2f(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }

// No compiler makes one operation of these and of what is beside them, where it may of others.
namespace fusegen_emulator {
template <typename T> inline T apart(T x) {
#ifdef FUSEGEN_EMULATOR_CONTRACT
  asm("" : "+m"(x));
#endif
  return x;
}
}  // namespace fusegen_emulator

inline float __fadd_rn(float x, float y) { return fusegen_emulator::apart(x) + fusegen_emulator::apart(y); }
inline float __fsub_rn(float x, float y) { return fusegen_emulator::apart(x) - fusegen_emulator::apart(y); }
inline float __fmul_rn(float x, float y) { return fusegen_emulator::apart(x * y); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return fusegen_emulator::apart(x) + fusegen_emulator::apart(y); }
inline double __dsub_rn(double x, double y) { return fusegen_emulator::apart(x) - fusegen_emulator::apart(y); }
inline double __dmul_rn(double x, double y) { return fusegen_emulator::apart(x * y); }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

// ---- half and bfloat16, as bits ----------------------------------------------------------------------------------

namespace fusegen_emulator {

// Rounds once, to nearest even, to a sign, ExponentBits and MantissaBits. NaN becomes 0x7FFF, as the hardware says.
template <int ExponentBits, int MantissaBits>
inline uint16_t narrow(double value) {
  const uint64_t bits = bit_cast<uint64_t>(value), mantissa = bits & ((uint64_t(1) << 52) - 1);
  const uint16_t sign = uint16_t(bits >> 63 << 15);
  const int smallest = 2 - (1 << (ExponentBits - 1)), exponent = int(bits >> 52 & 0x7FF) - 1023;
  const uint16_t infinity = ((1 << ExponentBits) - 1) << MantissaBits;
  if (exponent == 1024) return mantissa ? 0x7FFF : sign | infinity;
  const int below = exponent < smallest ? smallest - exponent : 0;  // subnormals keep fewer bits
  if (below > MantissaBits + 1) return sign;
  const int dropped = 52 - MantissaBits + below;
  const uint64_t significand = mantissa | uint64_t(1) << 52, kept = significand >> dropped;
  const uint64_t rest = significand & ((uint64_t(1) << dropped) - 1), half = uint64_t(1) << (dropped - 1);
  const uint64_t rounded = kept + (rest > half || (rest == half && (kept & 1)));
  const uint64_t magnitude = (uint64_t(exponent + below - smallest) << MantissaBits) + rounded;  // a carry moves up
  return sign | (magnitude < infinity ? uint16_t(magnitude) : infinity);
}

}  // namespace fusegen_emulator

inline uint16_t fusegen_double_to_half_bits(double x) { return fusegen_emulator::narrow<5, 10>(x); }
inline uint16_t fusegen_float_to_half_bits(float x) { return fusegen_emulator::narrow<5, 10>(double(x)); }
inline uint16_t fusegen_double_to_bfloat16_bits(double x) { return fusegen_emulator::narrow<8, 7>(x); }

inline uint16_t fusegen_float_to_bfloat16_bits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return x != x ? 0x7FFF : uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float fusegen_bfloat16_bits_to_float(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }

inline float fusegen_half_bits_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t(bits & 0x8000) << 16, magnitude = bits & 0x7FFF;
  if (magnitude >= 0x7C00) return __uint_as_float(sign | 0x7F800000 | (magnitude << 13));
  // Scaling by 2^112 rebiases the exponent and normalizes subnormals, exactly.
  return __uint_as_float(sign | __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f));
}

#if defined(FUSEGEN_EMULATOR_RACES) && !defined(FUSEGEN_EMULATOR_RUNTIME)
// The compiler announces what it turns into loads and stores, not calls of memcpy.
namespace fusegen_emulator {
inline __attribute__((always_inline)) void* copy_checked(void* target, const void* source, size_t bytes) {
  if (!__builtin_constant_p(bytes) || bytes > 8 || bytes & (bytes - 1)) {
    announce_read(source, bytes);
    announce_write(target, bytes);
  }
  return __builtin_memcpy(target, source, bytes);
}
}  // namespace fusegen_emulator
#define memcpy(target, source, bytes) fusegen_emulator::copy_checked(target, source, bytes)
#endif
