// The CUDA that fusegen prints, on the CPU: this header stands in for the CUDA compiler's built-in names.
//
//   blocks      spread over OS threads; every worker runs one block at a time, or the blocks of one cluster
//   threads     a plain loop when the kernel has no barrier (the compiler inlines and vectorizes through it),
//               else one fiber each, all on the worker's OS thread, switched only at barriers and warp collectives
//   __shared__  FUSEGEN_SHARED and fusegen_dynamic_shared(): per worker and block of a cluster, filled with 0xFF (NaN)
//               before every block or cluster, with red zones around it under AddressSanitizer
//   errors      recorded in the launch and returned as a code and a message; the process lives on
//
// The source defines FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers) once, at its end (launch/emulator.py appends it, and
// defines FUSEGEN_EMULATOR_CLUSTER on the command line as the number of blocks in a cluster of that kernel).
#pragma once

// libstdc++ parses its special functions (80 ms, half of a small kernel's compile time) with <math.h> in C++17.
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#define _GLIBCXX_USE_STD_SPEC_FUNCS 0
#endif
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#define FUSEGEN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUSEGEN_ASAN 1
#endif
#endif
#ifdef FUSEGEN_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if !(defined(__x86_64__) || defined(__aarch64__)) || defined(FUSEGEN_EMULATOR_UCONTEXT)
#define FUSEGEN_UCONTEXT 1
#include <ucontext.h>
#endif

// After the system headers: those spell __attribute__((__noinline__)), which the macro would break.
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __global__ inline __attribute__((always_inline))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define FUSEGEN_CLUSTER(blocks)
#ifndef FUSEGEN_EMULATOR_CLUSTER
#define FUSEGEN_EMULATOR_CLUSTER 1
#endif
#define __shared__ static_assert(false, "the emulator poisons shared memory: declare it with FUSEGEN_SHARED");

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct uint3 {
  unsigned x, y, z;
};
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace fusegen_emulator {

// ---- one launch, one worker ------------------------------------------------------------------------------------

enum Code { kOk, kDivergence, kAssertion, kResources, kClusterMisuse };
// Known to the compiler: a kernel without clusters is compiled as if there were none.
static constexpr unsigned kClusterBlocks = FUSEGEN_EMULATOR_CLUSTER;
#ifdef FUSEGEN_ASAN
enum { kStackBytes = 256 << 10 };  // red zones make frames large
#else
enum { kStackBytes = 64 << 10 };
#endif
enum State { kReady, kAtBarrier, kAtCollective, kAtCluster, kExited };

struct Site {  // the call of a barrier or collective, for messages and to tell two barriers apart
  const char* what;
  const char* file;
  int line;
};
// As a default argument it names the caller's line.
inline Site site(const char* what, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  return {what, file, line};
}

#ifdef FUSEGEN_UCONTEXT
typedef ucontext_t Context;
inline void fusegen_switch(Context* save, Context* load) { swapcontext(save, load); }
#else
typedef void* Context;  // the stack pointer; callee-saved registers lie on the stack
__attribute__((visibility("hidden"))) void fusegen_switch(Context* save, Context* load) asm("fusegen_switch");
#if defined(__x86_64__)
enum { kSavedBytes = 48, kEntrySlot = 48, kFrameBytes = 64 };
asm(".text\n.p2align 4\nfusegen_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq (%rsi), %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rcx\njmp *%rcx\n");
#else
enum { kSavedBytes = 160, kEntrySlot = 88, kFrameBytes = 160 };
asm(".text\n.p2align 4\nfusegen_switch:\nsub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
    "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
    "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x2, sp\nstr x2, [x0]\nldr x2, [x1]\nmov sp, x2\n"
    "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
    "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
    "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n");
#endif
#endif

struct Fiber {
  Context context;
  uint3 index;
  State state;
  Site site;
  uint32_t mask, votes;  // of the warp collective it waits in: who takes part, who voted true
  int source;            // lane whose value it wants
  unsigned rank;         // of its block in the cluster
  uint64_t sent, received;
  char* stack;
  void* fake_stack;  // AddressSanitizer's
};

struct Launch {
  dim3 grid, block;
  void** params;
  void** stack_slots;
  size_t shared_bytes;
  int shuffle;
  uint64_t seed;
  char* message;
  size_t message_bytes;
  uint64_t clusters, next, chunk;  // clusters (or blocks, each a cluster of its own) are handed out in chunks
  uint64_t multiplier, offset;     // the shuffled order of clusters: an affine permutation of 0..clusters-1
  int code;
};

struct Stacks;
struct ClusterBarrier;

struct Block {
  uint3 index;
  unsigned live, at_barrier;
  uint32_t warp_live[32], warp_waiting[32];
  Fiber* fibers;
  unsigned char* dynamic_shared;
};

struct Worker {
  Launch* launch;
  unsigned threads, live, round_next, round_end;  // of all blocks of the cluster
  unsigned* order;                                // of threads; null: natural
  uint64_t random;
  Fiber* fibers;   // block by block
  Fiber* current;  // null: the scheduler, or a kernel without barriers
  Block blocks[kClusterBlocks];
  ClusterBarrier* cluster;
  Stacks* stacks[kClusterBlocks];
  Context scheduler;
  void* fake_stack;
  const void* scheduler_stack;
  size_t scheduler_stack_bytes;
};
static thread_local Worker* worker;

inline unsigned current_rank() { return kClusterBlocks == 1 ? 0 : worker->current->rank; }
inline Block& block_of(Worker& w, const Fiber& fiber) { return w.blocks[kClusterBlocks == 1 ? 0 : fiber.rank]; }
inline unsigned block_threads(const Worker& w) { return w.threads / kClusterBlocks; }

struct Failure {};

__attribute__((format(printf, 3, 0))) inline void vrecord(Launch& launch, Code code, const char* format, va_list rest) {
  int none = kOk;  // the first error wins: later ones are often its consequences
  if (!__atomic_compare_exchange_n(&launch.code, &none, code, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  const int used =
      snprintf(launch.message, launch.message_bytes, "block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  vsnprintf(launch.message + used, launch.message_bytes - used, format, rest);
}

__attribute__((format(printf, 3, 4))) inline void record(Launch& launch, Code code, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vrecord(launch, code, format, rest);
  va_end(rest);
}

inline bool failed(const Launch& launch) { return __atomic_load_n(&launch.code, __ATOMIC_RELAXED) != kOk; }

inline void suspend();

// Ends the launch from inside a kernel: a fiber leaves for good, a plain thread unwinds to its worker.
__attribute__((noreturn, cold, noinline, format(printf, 2, 3))) static void fail(Code code, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vrecord(*worker->launch, code, format, rest);
  va_end(rest);
  if (!worker->current) throw Failure{};
  for (;;) suspend();
}

inline uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

inline void shuffle_order(Worker& w) {
  for (unsigned i = w.threads; i > 1; --i) {
    const unsigned j = unsigned(next_random(w.random) % i), swapped = w.order[j];
    w.order[j] = w.order[i - 1];
    w.order[i - 1] = swapped;
  }
}

inline uint3 thread_index(unsigned linear, const dim3& block) {
  return {linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
}

}  // namespace fusegen_emulator

#include "fusegen_emulator_shared.h"
#include "fusegen_emulator_fibers.h"
#include "fusegen_emulator_cluster.h"

namespace fusegen_emulator {

// ---- the launcher ------------------------------------------------------------------------------------------------

template <size_t... I>
struct Sequence {};
template <size_t N, size_t... I>
struct MakeSequence : MakeSequence<N - 1, N - 1, I...> {};
template <size_t... I>
struct MakeSequence<0, I...> {
  typedef Sequence<I...> type;
};

template <auto Kernel, bool Barriers, class Signature>
struct Runner;

template <auto Kernel, bool Barriers, class... A>
struct Runner<Kernel, Barriers, void (*)(A...)> {
  typedef typename MakeSequence<sizeof...(A)>::type Indices;

  // Arguments are loaded once and the kernel is inlined: reading threadIdx costs no memory access.
  static void threads(Worker& w, A... arguments) {
    const unsigned count = w.threads, *order = w.order;
    const dim3 block = w.launch->block;
    uint3 index = {0, 0, 0};
    for (unsigned i = 0; i < count; ++i) {
      if (order) index = thread_index(order[i], block);
      threadIdx = index;
      Kernel(arguments...);
      if (++index.x < block.x) continue;
      index.x = 0;
      if (++index.y < block.y) continue;
      index.y = 0;
      ++index.z;
    }
  }

  template <size_t... I>
  static void plain(Worker& w, Sequence<I...>) {
    threads(w, *static_cast<A*>(w.launch->params[I])...);
  }

  template <size_t... I>
  static void thread(void** params, Sequence<I...>) {
    Kernel(*static_cast<A*>(params[I])...);
  }

  static void body(void** params) { thread(params, Indices()); }

  static bool prepare(Worker& w) {
    if constexpr (Barriers) return create_fibers<fiber_main<body>>(w);
    return true;
  }

  static void block(Worker& w) {
    if constexpr (Barriers) {
      run_fibers(w);
    } else {
      if (w.order) shuffle_order(w);
      try {
        plain(w, Indices());
      } catch (const Failure&) {  // recorded where it was thrown
      }
    }
  }
};

inline uint3 block_index(uint64_t linear, const dim3& grid) {
  const uint64_t plane = linear / grid.x;
  return {unsigned(linear % grid.x), unsigned(plane % grid.y), unsigned(plane / grid.y)};
}

template <class Run>
void run_blocks(Worker& w) {
  Launch& launch = *w.launch;
  for (;;) {
    const uint64_t begin = __atomic_fetch_add(&launch.next, launch.chunk, __ATOMIC_RELAXED);
    for (uint64_t i = begin; i < begin + launch.chunk; ++i) {
      if (i >= launch.clusters || failed(launch)) return;
      const unsigned __int128 scattered = (unsigned __int128)i * launch.multiplier + launch.offset;
      const uint64_t linear = launch.shuffle ? uint64_t(scattered % launch.clusters) : i;
      for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {  // neighbours in x, whose size is a multiple
        w.blocks[rank].index = block_index(linear * kClusterBlocks + rank, launch.grid);
      }
      blockIdx = w.blocks[0].index;
      w.random = launch.seed ^ (linear * 0xD1342543DE82EF95u);  // its own: no matter which worker runs it
      poison_shared(w);
      Run::block(w);
    }
  }
}

template <class Run>
void* run_worker(void* argument) {
  Worker w = {};
  w.launch = static_cast<Launch*>(argument);
  Launch& launch = *w.launch;
  worker = &w;
  gridDim = launch.grid, blockDim = launch.block, blockIdx = {0, 0, 0};
  w.threads = launch.block.x * launch.block.y * launch.block.z * kClusterBlocks;
  bool ready = true;
  if (launch.shuffle) {
    w.order = static_cast<unsigned*>(malloc(w.threads * sizeof(unsigned)));
    ready = w.order != nullptr;
    for (unsigned i = 0; ready && i < w.threads; ++i) w.order[i] = i;
  }
  for (Block& block : w.blocks) {
    void* shared = nullptr;  // of exactly the size asked for, so that AddressSanitizer sees its end
    if (launch.shared_bytes) ready = ready && posix_memalign(&shared, 128, launch.shared_bytes) == 0;
    block.dynamic_shared = static_cast<unsigned char*>(shared);
  }
  if (ready && Run::prepare(w)) {
    run_blocks<Run>(w);
  } else {
    record(launch, kResources, "no memory for %u threads' stacks and %zu bytes of shared memory", w.threads,
           launch.shared_bytes * kClusterBlocks);
  }
  for (Stacks* stacks : w.stacks) {
    if (stacks) give_back_stacks(stacks, launch.stack_slots);
  }
  for (Block& block : w.blocks) free(block.dynamic_shared);
  free(w.cluster);
  free(w.fibers);
  free(w.order);
  worker = nullptr;
  return nullptr;
}

inline uint64_t common_divisor(uint64_t a, uint64_t b) {
  while (b) {
    const uint64_t rest = a % b;
    a = b, b = rest;
  }
  return a;
}

// Threads are made per launch (20 us): a pool would not survive fork(), which data loaders use.
template <class Run>
int launch_kernel(const unsigned* grid, const unsigned* block, void** params, size_t shared_bytes, int shuffle,
                  uint64_t seed, int workers, void** stack_slots, char* message, size_t message_bytes) {
  Launch launch = {};
  launch.grid = {grid[0], grid[1], grid[2]}, launch.block = {block[0], block[1], block[2]};
  launch.params = params, launch.stack_slots = stack_slots;
  launch.shared_bytes = shared_bytes, launch.shuffle = shuffle;
  launch.message = message, launch.message_bytes = message_bytes;
  launch.clusters = uint64_t(grid[0]) * grid[1] * grid[2] / kClusterBlocks;
  launch.seed = next_random(seed);
  launch.offset = next_random(seed) % launch.clusters;
  do {
    launch.multiplier = next_random(seed) % launch.clusters | 1;
  } while (common_divisor(launch.multiplier, launch.clusters) != 1);
  enum { kMostWorkers = 256 };
  pthread_t threads[kMostWorkers];
  uint64_t wanted = workers < 1 ? 1 : workers > kMostWorkers ? kMostWorkers : workers;
  if (wanted > launch.clusters) wanted = launch.clusters;
  if (kClusterBlocks > 1) wanted = workers_for_clusters(wanted, launch.block);
  launch.chunk = launch.clusters / (wanted * 16) + 1;
  unsigned started = 0;
  while (started + 1 < wanted && pthread_create(&threads[started], nullptr, run_worker<Run>, &launch) == 0) ++started;
  run_worker<Run>(&launch);
  while (started) pthread_join(threads[--started], nullptr);
  return launch.code;
}

}  // namespace fusegen_emulator

// A cluster's blocks wait for each other, so its threads are fibers in any case.
#define FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers)                                                                \
  extern "C" __attribute__((visibility("default"))) int fusegen_emulated_launch(                                   \
      const unsigned* grid, const unsigned* block, void** params, size_t shared_bytes, int shuffle, uint64_t seed, \
      int workers, void** stack_slots, char* message, size_t message_bytes) {                                      \
    return fusegen_emulator::launch_kernel<fusegen_emulator::Runner<                                               \
        kernel, (barriers || fusegen_emulator::kClusterBlocks > 1), decltype(&kernel)>>(                           \
        grid, block, params, shared_bytes, shuffle, seed, workers, stack_slots, message, message_bytes);           \
  }                                                                                                                \
  extern "C" __attribute__((visibility("default"))) unsigned fusegen_emulated_cluster() {                          \
    return fusegen_emulator::kClusterBlocks;                                                                       \
  }

#include "fusegen_emulator_builtins.h"
