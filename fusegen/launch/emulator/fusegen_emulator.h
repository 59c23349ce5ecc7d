// The CUDA that fusegen prints, on the CPU: this header stands in for the CUDA compiler's built-in names.
//
//   blocks      spread over OS threads; every worker runs one block at a time, or the blocks of one cluster
//   threads     a plain loop when the kernel has no barrier (the compiler inlines and vectorizes through it),
//               else one fiber each, all on the worker's OS thread, switched only at barriers and warp collectives
//   __shared__  FUSEGEN_SHARED and fusegen_dynamic_shared(): per worker and block of a cluster, filled with 0xFF (NaN)
//               before every block or cluster, with red zones around it under AddressSanitizer
//   errors      recorded in the launch and returned as a code and a message; the process lives on
//   races       with FUSEGEN_EMULATOR_RACES the compiler announces every access to memory, and the runtime finds those
//               that nothing orders (fusegen_emulator_races.h)
//
// What is the same for every kernel (fibers, barriers, workers) is in fusegen_emulator_runtime.cpp, compiled once and
// linked to each (launch/emulator/precompiled.py).
//
// The source defines FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers) for each kernel, at its end (launch/emulator/build.py
// appends it, and defines FUSEGEN_EMULATOR_CLUSTER on the command line as the number of blocks in a cluster of theirs).
#pragma once

// libstdc++ parses its special functions (80 ms, half of a small kernel's compile time) with <math.h> in C++17.
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#define _GLIBCXX_USE_STD_SPEC_FUNCS 0
#endif
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
// Defined on the command line for a runtime that serves sanitized kernels without being sanitized.
#if defined(FUSEGEN_ASAN)
#elif defined(__SANITIZE_ADDRESS__)
#define FUSEGEN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FUSEGEN_ASAN 1
#endif
#endif
#ifdef FUSEGEN_ASAN
#include <sanitizer/asan_interface.h>
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
#ifdef FUSEGEN_EMULATOR_RACES
// What is the emulator's own is not checked. So it calls kernels, which are, and does not take them in.
#define FUSEGEN_UNCHECKED __attribute__((no_sanitize("thread", "address")))
#define __global__ inline __attribute__((noinline))
#else
#define FUSEGEN_UNCHECKED
#define __global__ inline __attribute__((always_inline))
#endif
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ inline __attribute__((noinline))  // inline: where nobody calls it, it is not compiled
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __grid_constant__
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
#ifdef FUSEGEN_EMULATOR_RACES
// Functions of the runtime: to read a variable would be an access to be checked. They are constant within a kernel.
namespace fusegen_emulator {
__attribute__((const)) uint3 running_thread();
__attribute__((const)) uint3 running_block();
__attribute__((const)) dim3 block_size();
__attribute__((const)) dim3 grid_size();
}  // namespace fusegen_emulator
#define threadIdx (fusegen_emulator::running_thread())
#define blockIdx (fusegen_emulator::running_block())
#define blockDim (fusegen_emulator::block_size())
#define gridDim (fusegen_emulator::grid_size())
#else
static thread_local uint3 threadIdx, blockIdx;
static thread_local dim3 blockDim, gridDim;
#endif
static constexpr int warpSize = 32;

namespace fusegen_emulator {

// ---- one launch, one worker ------------------------------------------------------------------------------------

#ifdef FUSEGEN_EMULATOR_RACES
static constexpr bool kRaces = true;
#else
static constexpr bool kRaces = false;
#endif

enum Code { kOk, kDivergence, kAssertion, kResources, kClusterMisuse, kRace, kMisplaced, kMisaligned };
// Known to the compiler: a kernel without clusters is compiled as if there were none.
static constexpr unsigned kClusterBlocks = FUSEGEN_EMULATOR_CLUSTER;
#ifdef FUSEGEN_ASAN
enum { kStackBytes = 256 << 10 };  // red zones make frames large
#else
enum { kStackBytes = 128 << 10 };
#endif
enum State { kReady, kAtBarrier, kAtRow, kAtCollective, kAtCluster, kAtLink, kExited };

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
#else
typedef void* Context;  // the stack pointer; callee-saved registers lie on the stack
#endif

struct Fiber {
  Context context;
  uint3 index;
  State state;
  Site site;
  uint32_t mask, votes;  // of the warp collective it waits in: who takes part, who voted true
  bool orders;           // that one orders accesses to memory
  int source;            // lane whose value it wants
  unsigned rank;         // of its block in the cluster
  uint32_t round;        // of messages that it waits for
  uint64_t sent, received;
  char* stack;
  void* fake_stack;  // AddressSanitizer's
};

struct Worker;
struct Races;

struct Entry;
typedef int Launcher(const Entry* entry, const unsigned* grid, const unsigned* block, void** params,
                     size_t shared_bytes, int shuffle, uint64_t seed, int workers, void** stack_slots, char* message,
                     size_t message_bytes);

struct Entry {               // a kernel, as the runtime knows it, and as who launches it finds it
  Launcher* launch;          // launch_kernel
  const char* name;
  bool early;                // it may have started before the kernel before it ended
  void (*start)(Worker&);    // once for each worker; or null
  void (*block)(Worker&);    // all threads of a block one after the other; null where they are fibers
  void (*thread)(void**);    // one of the threads that are fibers
  const bool* is_pointer;    // each of its parameters
  unsigned parameters;
};

struct Launch {
  Entry entry;
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
  // The report of a place out of range that comes first in its tensor, which threads of any order find: see misplaced().
  bool reporting;  // held by the thread that reports one
  bool misplaced;
  int site;
  int64_t place, size, position;
};

struct Stacks;
struct ClusterBarrier;

struct Block {
  uint3 index;
  unsigned live, at_barrier, at_row;  // at_row: at the barriers of all rows
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
  uint3 *thread_index, *block_index;  // the kernel's threadIdx and blockIdx, where they are set from outside
  Races* races;
  Block blocks[kClusterBlocks];
  ClusterBarrier* cluster;
  Stacks* stacks[kClusterBlocks];
  Context scheduler;
  void* fake_stack;
  const void* scheduler_stack;
  size_t scheduler_stack_bytes;
};
// Not thread_local, which other files could initialize at run time, so that every access would call a function.
extern __thread Worker* worker;

inline unsigned current_rank() { return kClusterBlocks == 1 ? 0 : worker->current->rank; }

// Ends the launch from inside a kernel: a fiber leaves for good, a plain thread jumps back to its worker.
__attribute__((noreturn, cold, format(printf, 2, 3))) void fail(Code code, const char* format, ...);
// A place that an axis does not have. The launch goes on, and says so when it has ended.
__attribute__((cold)) void misplaced(int64_t place, int64_t size, int64_t position, int site);
void wait_barrier(const Site& site);
void wait_row(const Site& site);
const Fiber& wait_collective(const Site& site, uint32_t mask, uint64_t sent, int source);
void wait_warp(const Site& site, uint32_t mask);
void arrive_at_cluster(const Site& site);
void wait_for_cluster(const Site& site);
void store_remote(const Site& site, void* shared, int rank, const void* value, size_t bytes);
void send_message(const Site& site, void* shared, int rank, const void* value, size_t bytes, uint32_t round);
void receive_messages(const Site& site, int64_t bytes, uint32_t round);
#ifdef FUSEGEN_EMULATOR_RACES
void run_alone(Worker& worker, const uint3& thread);
void copy_async(void* target, const void* source, size_t bytes);
void await_copies();
void await_previous_kernel();
void fence();
void check_atomic(const void* address, size_t bytes);
void announce_read(const void* address, size_t bytes);
void announce_write(const void* address, size_t bytes);
void* shared_variable(const char* name, size_t bytes);
#endif
Launcher launch_kernel;

inline uint3 thread_index(unsigned linear, const dim3& block) {
  return {linear % block.x, linear / block.x % block.y, linear / block.x / block.y};
}

}  // namespace fusegen_emulator

#include "fusegen_emulator_shared.h"

namespace fusegen_emulator {

// ---- the launcher ------------------------------------------------------------------------------------------------

template <size_t... I>
struct Sequence {};
template <class Left, class Right>
struct Joined;
template <size_t... I, size_t... J>
struct Joined<Sequence<I...>, Sequence<J...>> {
  typedef Sequence<I..., (sizeof...(I) + J)...> type;
};
// Of two halves: a compiler follows templates 900 deep, and a kernel that reads many places has more arguments.
template <size_t N>
struct MakeSequence {
  typedef typename Joined<typename MakeSequence<N / 2>::type, typename MakeSequence<N - N / 2>::type>::type type;
};
template <>
struct MakeSequence<0> {
  typedef Sequence<> type;
};
template <>
struct MakeSequence<1> {
  typedef Sequence<0> type;
};

template <class T>
constexpr bool points = false;
template <class T>
constexpr bool points<T*> = true;

template <class Signature>
struct IndicesOf;
template <class... A>
struct IndicesOf<void (*)(A...)> {
  typedef typename MakeSequence<sizeof...(A)>::type type;
};

#ifndef FUSEGEN_EMULATOR_RACES
// Only fibers have their indices set from outside: where nobody has their address, they stay in registers.
inline void start_fibers(Worker& w) {
  gridDim = w.launch->grid, blockDim = w.launch->block;
  w.thread_index = &threadIdx, w.block_index = &blockIdx;
}
#endif

// As few functions as there can be: without an optimizer each takes a compiler 2 to 3 ms, of the 45 of a small kernel.
template <auto Kernel, class Signature, class Indices>
struct Runner;

template <auto Kernel, class... A, size_t... I>
struct Runner<Kernel, void (*)(A...), Sequence<I...>> {
  // Arguments are loaded once and the kernel is inlined: reading threadIdx costs no memory access.
  static FUSEGEN_UNCHECKED void threads(Worker& w, A... arguments) {
    const unsigned count = w.threads, *order = w.order;
    const dim3 block = w.launch->block;
    uint3 index = {0, 0, 0};
    for (unsigned i = 0; i < count; ++i) {
      if (order) index = thread_index(order[i], block);
#ifdef FUSEGEN_EMULATOR_RACES
      run_alone(w, index);
#else
      threadIdx = index;
#endif
      Kernel(arguments...);
      if (++index.x < block.x) continue;
      index.x = 0;
      if (++index.y < block.y) continue;
      index.y = 0;
      ++index.z;
    }
  }

  static FUSEGEN_UNCHECKED void block(Worker& w) {
#ifndef FUSEGEN_EMULATOR_RACES
    gridDim = w.launch->grid, blockDim = w.launch->block, blockIdx = w.blocks[0].index;
#endif
    threads(w, *static_cast<A*>(w.launch->params[I])...);
  }

  static FUSEGEN_UNCHECKED void thread(void** params) { Kernel(*static_cast<A*>(params[I])...); }

  static constexpr bool is_pointer[] = {points<A>..., false};

  template <bool Barriers>
  static constexpr Entry entry(const char* name, bool early) {
#ifdef FUSEGEN_EMULATOR_RACES
    void (*const start)(Worker&) = nullptr;
#else
    void (*const start)(Worker&) = Barriers ? start_fibers : nullptr;
#endif
    if constexpr (Barriers) {
      return {launch_kernel, name, early, start, nullptr, thread, is_pointer, sizeof...(A)};
    } else {
      return {launch_kernel, name, early, start, block, nullptr, is_pointer, sizeof...(A)};
    }
  }
};

}  // namespace fusegen_emulator

// What the library has of a kernel. A cluster's blocks wait for each other, so its threads are fibers in any case.
#define FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers)                          \
  FUSEGEN_EMULATOR_ENTRY(fusegen_emulated_##kernel, kernel, barriers, false) \
  FUSEGEN_EMULATOR_ENTRY(fusegen_emulated_early_##kernel, kernel, barriers, true)
#define FUSEGEN_EMULATOR_ENTRY(symbol, kernel, barriers, early)                                                       \
  extern "C" __attribute__((visibility("default"))) const fusegen_emulator::Entry symbol;                             \
  constexpr fusegen_emulator::Entry symbol =                                                                          \
      fusegen_emulator::Runner<kernel, decltype(&kernel), fusegen_emulator::IndicesOf<decltype(&kernel)>::type>::entry< \
          (barriers || fusegen_emulator::kClusterBlocks > 1)>(#kernel, early);

#include "fusegen_emulator_builtins.h"
