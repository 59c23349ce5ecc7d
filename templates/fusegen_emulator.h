// The CUDA that fusegen prints, on the CPU: this header stands in for the CUDA compiler's built-in names.
//
//   blocks      spread over OS threads; every worker runs one block at a time
//   threads     a plain loop when the kernel has no barrier (the compiler inlines and vectorizes through it),
//               else one fiber each, all on the worker's OS thread, switched only at barriers and warp collectives
//   __shared__  FUSEGEN_SHARED and fusegen_dynamic_shared(): per worker, filled with 0xFF (NaN) before every block,
//               with red zones around it under AddressSanitizer
//   errors      recorded in the launch and returned as a code and a message; the process lives on
//
// The source defines FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers) once, at its end (launch/emulator.py appends it).
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

enum Code { kOk, kDivergence, kAssertion, kResources };
#ifdef FUSEGEN_ASAN
enum { kStackBytes = 256 << 10 };  // red zones make frames large
#else
enum { kStackBytes = 64 << 10 };
#endif
enum State { kReady, kAtBarrier, kAtCollective, kExited };

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
  uint64_t blocks, next, chunk;  // blocks are handed out in chunks
  uint64_t multiplier, offset;   // the shuffled block order: an affine permutation of 0..blocks-1
  int code;
};

struct Stacks;

struct Worker {
  Launch* launch;
  unsigned threads, live, at_barrier, round_next, round_end;
  unsigned* order;  // of threads; null: natural
  uint64_t random;
  unsigned char* dynamic_shared;
  Fiber* fibers;
  Fiber* current;  // null: the scheduler, or a kernel without barriers
  uint32_t warp_live[32], warp_waiting[32];
  Stacks* stacks;
  Context scheduler;
  void* fake_stack;
  const void* scheduler_stack;
  size_t scheduler_stack_bytes;
};
static thread_local Worker* worker;

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

// ---- shared memory -----------------------------------------------------------------------------------------------

struct SharedRegion {  // every variable of this OS thread, so that a new block can poison them all
  void* data;
  size_t bytes;
  SharedRegion* next;
};
static thread_local SharedRegion* shared_regions;

template <class T>
struct SharedVariable {
  alignas(128) unsigned char before[128];
  alignas(128) unsigned char value[sizeof(T)];
  unsigned char after[128];
  SharedRegion region;
  SharedVariable() : region{value, sizeof value, shared_regions} {
    shared_regions = &region;
    memset(value, 0xFF, sizeof value);
#ifdef FUSEGEN_ASAN
    __asan_poison_memory_region(before, sizeof before);
    __asan_poison_memory_region(after, sizeof after);
  }
  ~SharedVariable() {  // the memory goes back to the C library with its thread
    __asan_unpoison_memory_region(this, sizeof *this);
#endif
  }
  T& get() { return reinterpret_cast<T&>(value); }
};

inline void poison_shared(Worker& w) {
  for (SharedRegion* region = shared_regions; region; region = region->next) memset(region->data, 0xFF, region->bytes);
  if (w.dynamic_shared) memset(w.dynamic_shared, 0xFF, w.launch->shared_bytes);
}

// ---- fibers ------------------------------------------------------------------------------------------------------

inline void start_switch(void** fake_stack, const void* bottom, size_t bytes) {
#ifdef FUSEGEN_ASAN
  __sanitizer_start_switch_fiber(fake_stack, bottom, bytes);
#else
  (void)fake_stack, (void)bottom, (void)bytes;
#endif
}

inline void finish_switch(void* fake_stack, const void** bottom, size_t* bytes) {
#ifdef FUSEGEN_ASAN
  __sanitizer_finish_switch_fiber(fake_stack, bottom, bytes);
#else
  (void)fake_stack, (void)bottom, (void)bytes;
#endif
}

// The next ready fiber of the round, or null at its end. A round is a stretch of the order in which threads run.
inline Fiber* next_in_round(Worker& w) {
  if (failed(*w.launch)) return nullptr;
  while (w.round_next < w.round_end) {
    const unsigned i = w.round_next++;
    Fiber& fiber = w.fibers[w.order ? w.order[i] : i];
    if (fiber.state == kReady) return &fiber;
  }
  return nullptr;
}

// Leaves the running context for a fiber, or for the scheduler (null); returns when that context is resumed.
inline void switch_to(Worker& w, Context* from, void** fake_stack, Fiber* fiber) {
  w.current = fiber;
  if (fiber) threadIdx = fiber->index;
  start_switch(fake_stack, fiber ? fiber->stack : w.scheduler_stack, fiber ? kStackBytes : w.scheduler_stack_bytes);
  fusegen_switch(from, fiber ? &fiber->context : &w.scheduler);
  finish_switch(*fake_stack, nullptr, nullptr);
}

inline void suspend() {
  Worker& w = *worker;
  Fiber& self = *w.current;
  switch_to(w, &self.context, &self.fake_stack, next_in_round(w));
}

inline void release_barrier(Worker& w) {
  if (!w.at_barrier || w.at_barrier != w.live) return;
  const Fiber* first = nullptr;
  for (unsigned i = 0; i < w.threads; ++i) {
    Fiber& fiber = w.fibers[i];
    if (fiber.state != kAtBarrier) continue;
    if (!first) first = &fiber;
    if (fiber.site.line != first->site.line) {
      return record(*w.launch, kDivergence,
                    "threads of one block meet in different __syncthreads(): thread (%u, %u, %u) at %s:%d, "
                    "thread (%u, %u, %u) at %s:%d",
                    first->index.x, first->index.y, first->index.z, first->site.file, first->site.line, fiber.index.x,
                    fiber.index.y, fiber.index.z, fiber.site.file, fiber.site.line);
    }
    fiber.state = kReady;
  }
  w.at_barrier = 0;
}

// Lets the lanes of `mask` go once all that still live have arrived with that same mask.
inline void release_collective(Worker& w, unsigned warp, uint32_t mask) {
  const uint32_t group = mask & w.warp_live[warp];
  if (group & ~w.warp_waiting[warp]) return;
  Fiber* lanes = w.fibers + warp * 32;
  uint32_t votes = 0;
  const Fiber* first = nullptr;
  for (int lane = 0; lane < 32; ++lane) {
    if (!(group >> lane & 1)) continue;
    if (lanes[lane].mask != mask) return;
    if (!first) first = &lanes[lane];
    if (lanes[lane].site.line != first->site.line || lanes[lane].site.what != first->site.what) {
      return record(*w.launch, kDivergence,
                    "lanes of one warp meet in different collectives: lane %d in %s at %s:%d, "
                    "lane %d in %s at %s:%d",
                    int(first - lanes), first->site.what, first->site.file, first->site.line, lane,
                    lanes[lane].site.what, lanes[lane].site.file, lanes[lane].site.line);
    }
    if (lanes[lane].sent) votes |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    if (!(group >> lane & 1)) continue;
    Fiber& fiber = lanes[lane];  // a lane that takes no part has no value to give: hardware says "undefined"
    fiber.received = (group >> fiber.source & 1) ? lanes[fiber.source].sent : ~uint64_t(0);
    fiber.votes = votes;
    fiber.state = kReady;
  }
  w.warp_waiting[warp] &= ~group;
}

__attribute__((noreturn, cold)) inline void fail_without_barriers(const Site& site) {
  fail(kDivergence, "%s at %s:%d in a kernel built with barriers=False", site.what, site.file, site.line);
}

inline void wait_barrier(const Site& site) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  self.state = kAtBarrier;
  self.site = site;
  ++w.at_barrier;
  release_barrier(w);
  if (self.state != kReady || w.order || failed(*w.launch)) suspend();
}

inline Fiber& wait_collective(const Site& site, uint32_t mask, uint64_t sent, int source) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  const unsigned thread = unsigned(&self - w.fibers), warp = thread / 32;
  if (!(mask >> thread % 32 & 1)) {
    fail(kDivergence, "%s at %s:%d: lane %u calls it with mask 0x%08x, which leaves it out", site.what, site.file,
         site.line, thread % 32, mask);
  }
  self.site = site, self.mask = mask, self.sent = sent, self.source = source;
  self.state = kAtCollective;
  w.warp_waiting[warp] |= 1u << thread % 32;
  release_collective(w, warp, mask);
  if (self.state != kReady || w.order || failed(*w.launch)) suspend();
  return self;
}

inline void exit_thread(Worker& w, Fiber& self) {
  const unsigned thread = unsigned(&self - w.fibers), warp = thread / 32;
  self.state = kExited;
  --w.live;
  w.warp_live[warp] &= ~(1u << thread % 32);
  release_barrier(w);  // as on hardware since Volta, barriers count the threads that have not exited
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (w.warp_waiting[warp] >> lane & 1) release_collective(w, warp, w.fibers[warp * 32 + lane].mask);
  }
}

template <void (*Body)(void**)>
void fiber_main() {
  Worker& w = *worker;
  const bool first = !w.scheduler_stack;  // only the first fiber surely comes from the scheduler
  finish_switch(nullptr, first ? &w.scheduler_stack : nullptr, first ? &w.scheduler_stack_bytes : nullptr);
  for (;;) {  // once per block: the next block resumes the fiber here
    Body(w.launch->params);
    exit_thread(w, *w.current);
    suspend();
  }
}

inline void record_deadlock(Worker& w) {
  char text[900];
  int used = 0;
  for (unsigned i = 0; i < w.threads && used < 700; ++i) {
    const Fiber& first = w.fibers[i];
    if (first.state == kExited) continue;
    unsigned count = 0;
    bool seen = false;
    for (unsigned j = 0; j < w.threads; ++j) {
      const Fiber& other = w.fibers[j];
      if (other.state != first.state || other.site.line != first.site.line) continue;
      seen = seen || j < i;
      ++count;
    }
    if (seen) continue;
    used += snprintf(text + used, sizeof text - used, "; %u at %s (%s:%d), the first is thread (%u, %u, %u)", count,
                     first.site.what, first.site.file, first.site.line, first.index.x, first.index.y, first.index.z);
    if (used > 700) break;
  }
  record(*w.launch, kDivergence, "deadlock: %u of %u threads have exited and the others wait%s", w.threads - w.live,
         w.threads, text);
}

// Stacks for one block, kept between launches (mapping and first touch cost more than a small kernel). `slots` belongs
// to the Python process and serves every kernel; a slot is taken and given back whole, so no lock can outlive a fork().
struct Stacks {
  unsigned prepared;  // the first so many stacks have their guard page
  size_t page, stride;
  char* stack(unsigned i) { return reinterpret_cast<char*>(this) + page + i * stride + page; }
};
enum { kStackSlots = 64, kMostThreads = 1024 };

inline Stacks* take_stacks(void** slots) {
  for (int i = 0; i < kStackSlots; ++i) {
    void* stacks = __atomic_exchange_n(&slots[i], nullptr, __ATOMIC_ACQ_REL);
    if (stacks) return static_cast<Stacks*>(stacks);
  }
  const size_t page = size_t(sysconf(_SC_PAGESIZE)), stride = kStackBytes + page;
  void* memory = mmap(nullptr, page + kMostThreads * stride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  Stacks* stacks = static_cast<Stacks*>(memory);
  stacks->page = page, stacks->stride = stride;
  return stacks;
}

inline void give_back_stacks(Stacks* stacks, void** slots) {
  const size_t bytes = stacks->page + kMostThreads * stacks->stride;
#ifdef FUSEGEN_ASAN
  __asan_unpoison_memory_region(stacks, bytes);  // a failed launch leaves frames behind
#endif
  for (int i = 0; i < kStackSlots; ++i) {
    void* none = nullptr;
    if (__atomic_compare_exchange_n(&slots[i], &none, stacks, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  }
  munmap(stacks, bytes);
}

template <void (*Entry)()>
bool create_fibers(Worker& w) {
  w.stacks = take_stacks(w.launch->stack_slots);
  w.fibers = static_cast<Fiber*>(calloc(w.threads, sizeof(Fiber)));
  if (!w.stacks || !w.fibers) return false;
  for (; w.stacks->prepared < w.threads; ++w.stacks->prepared) {  // overflow faults instead of hurting a neighbour
    mprotect(w.stacks->stack(w.stacks->prepared) - w.stacks->page, w.stacks->page, PROT_NONE);
  }
  for (unsigned i = 0; i < w.threads; ++i) {
    Fiber& fiber = w.fibers[i];
    fiber.stack = w.stacks->stack(i);
    fiber.index = thread_index(i, w.launch->block);
#ifdef FUSEGEN_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, Entry, 0);
#else
    // Tops differ by a few cache lines, or all stacks would compete for the same sets of the first-level cache.
    char* frame = fiber.stack + kStackBytes - i % 32 * 128 - kFrameBytes;
    void (*entry)() = Entry;
    memcpy(frame + kEntrySlot, &entry, sizeof entry);
    fiber.context = frame;
#endif
  }
  return true;
}

// Fibers hand over to each other until the end of the round. False: none was ready.
inline bool run_round(Worker& w, unsigned begin, unsigned end) {
  w.round_next = begin, w.round_end = end < w.threads ? end : w.threads;
  Fiber* first = next_in_round(w);
  if (first) switch_to(w, &w.scheduler, &w.fake_stack, first);
  return first;
}

// Natural order runs a warp until all its lanes wait for the block (its stacks stay in the cache); shuffled order
// draws a new permutation of the whole block for every round.
inline void run_fibers(Worker& w) {
  w.live = w.threads;
  w.at_barrier = 0;
  for (unsigned warp = 0; warp * 32 < w.threads; ++warp) {
    const unsigned lanes = w.threads - warp * 32;
    w.warp_live[warp] = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    w.warp_waiting[warp] = 0;
  }
  for (unsigned i = 0; i < w.threads; ++i) w.fibers[i].state = kReady;
  while (w.live && !failed(*w.launch)) {
    bool progress = false;
    if (w.order) {
      shuffle_order(w);
      progress = run_round(w, 0, w.threads);
    } else {
      for (unsigned begin = 0; begin < w.threads; begin += 32) {
        while (run_round(w, begin, begin + 32)) progress = true;
      }
    }
    if (!progress && !failed(*w.launch)) record_deadlock(w);
  }
}

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

template <class Run>
void run_blocks(Worker& w) {
  Launch& launch = *w.launch;
  for (;;) {
    const uint64_t begin = __atomic_fetch_add(&launch.next, launch.chunk, __ATOMIC_RELAXED);
    for (uint64_t i = begin; i < begin + launch.chunk; ++i) {
      if (i >= launch.blocks || failed(launch)) return;
      const unsigned __int128 scattered = (unsigned __int128)i * launch.multiplier + launch.offset;
      const uint64_t linear = launch.shuffle ? uint64_t(scattered % launch.blocks) : i;
      const uint64_t plane = linear / launch.grid.x;
      blockIdx = {unsigned(linear % launch.grid.x), unsigned(plane % launch.grid.y), unsigned(plane / launch.grid.y)};
      w.random = launch.seed ^ (linear * 0xD1342543DE82EF95u);  // the block's own: no matter which worker runs it
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
  w.threads = launch.block.x * launch.block.y * launch.block.z;
  bool ready = true;
  if (launch.shuffle) {
    w.order = static_cast<unsigned*>(malloc(w.threads * sizeof(unsigned)));
    ready = w.order != nullptr;
    for (unsigned i = 0; ready && i < w.threads; ++i) w.order[i] = i;
  }
  void* shared = nullptr;  // of exactly the size asked for, so that AddressSanitizer sees its end
  if (launch.shared_bytes) ready = ready && posix_memalign(&shared, 128, launch.shared_bytes) == 0;
  w.dynamic_shared = static_cast<unsigned char*>(shared);
  if (ready && Run::prepare(w)) {
    run_blocks<Run>(w);
  } else {
    record(launch, kResources, "no memory for %u threads' stacks and %zu bytes of shared memory", w.threads,
           launch.shared_bytes);
  }
  if (w.stacks) give_back_stacks(w.stacks, launch.stack_slots);
  free(w.fibers);
  free(w.order);
  free(shared);
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
  launch.blocks = uint64_t(grid[0]) * grid[1] * grid[2];
  launch.seed = next_random(seed);
  launch.offset = next_random(seed) % launch.blocks;
  do {
    launch.multiplier = next_random(seed) % launch.blocks | 1;
  } while (common_divisor(launch.multiplier, launch.blocks) != 1);
  enum { kMostWorkers = 256 };
  pthread_t threads[kMostWorkers];
  uint64_t wanted = workers < 1 ? 1 : workers > kMostWorkers ? kMostWorkers : workers;
  if (wanted > launch.blocks) wanted = launch.blocks;
  launch.chunk = launch.blocks / (wanted * 16) + 1;
  unsigned started = 0;
  while (started + 1 < wanted && pthread_create(&threads[started], nullptr, run_worker<Run>, &launch) == 0) ++started;
  run_worker<Run>(&launch);
  while (started) pthread_join(threads[--started], nullptr);
  return launch.code;
}

}  // namespace fusegen_emulator

#define FUSEGEN_EMULATOR_LAUNCHER(kernel, barriers)                                                                \
  extern "C" __attribute__((visibility("default"))) int fusegen_emulated_launch(                                   \
      const unsigned* grid, const unsigned* block, void** params, size_t shared_bytes, int shuffle, uint64_t seed, \
      int workers, void** stack_slots, char* message, size_t message_bytes) {                                      \
    return fusegen_emulator::launch_kernel<fusegen_emulator::Runner<kernel, barriers, decltype(&kernel)>>(         \
        grid, block, params, shared_bytes, shuffle, seed, workers, stack_slots, message, message_bytes);           \
  }

// ---- what kernels call: shared memory, barriers, warp collectives ----------------------------------------------

// FUSEGEN_SHARED(float, tile, [32][33]);  in CUDA: __shared__ float tile[32][33]; inside functions only. A scalar has
// no extents: FUSEGEN_SHARED(float, total, );
#define FUSEGEN_SHARED(type, name, extents)                                               \
  typedef type name##_shared_type extents;                                                \
  static thread_local fusegen_emulator::SharedVariable<name##_shared_type> name##_shared; \
  name##_shared_type& name = name##_shared.get()

inline unsigned char* fusegen_dynamic_shared() {
  unsigned char* memory = fusegen_emulator::worker->dynamic_shared;
  if (!memory)
    fusegen_emulator::fail(fusegen_emulator::kAssertion, "dynamic shared memory: launched with 0 bytes of it");
  return memory;
}

#undef assert
#define assert(condition)                                                                                            \
  ((condition)                                                                                                       \
       ? void(0)                                                                                                     \
       : fusegen_emulator::fail(fusegen_emulator::kAssertion, "thread (%u, %u, %u): assertion `%s` failed at %s:%d", \
                                threadIdx.x, threadIdx.y, threadIdx.z, #condition, __FILE__, __LINE__))
inline void __trap() { fusegen_emulator::fail(fusegen_emulator::kAssertion, "__trap()"); }

inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() {}

inline void __syncthreads(fusegen_emulator::Site site = fusegen_emulator::site("__syncthreads()")) {
  fusegen_emulator::wait_barrier(site);
}

inline void __syncwarp(unsigned mask = ~0u, fusegen_emulator::Site site = fusegen_emulator::site("__syncwarp()")) {
  fusegen_emulator::wait_collective(site, mask, 0, 0);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              fusegen_emulator::Site site = fusegen_emulator::site("__ballot_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate != 0, 0).votes;
}

inline int __any_sync(unsigned mask, int predicate,
                      fusegen_emulator::Site site = fusegen_emulator::site("__any_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate != 0, 0).votes != 0;
}

inline int __all_sync(unsigned mask, int predicate,
                      fusegen_emulator::Site site = fusegen_emulator::site("__all_sync()")) {
  return fusegen_emulator::wait_collective(site, mask, predicate == 0, 0).votes == 0;
}

namespace fusegen_emulator {

inline int lane_index() { return int((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32); }

template <class T>
T exchange(const Site& site, unsigned mask, T value, int source, int width) {
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

// ---- memory, bits, integers --------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* address) {
  return *address;
}
template <class T>
T __ldcs(const T* address) {
  return *address;
}
template <class T>
T __ldcg(const T* address) {
  return *address;
}
template <class T, class U>
void __stcs(T* address, const U& value) {
  *address = value;
}
template <class T, class U>
void __stcg(T* address, const U& value) {
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

template <class T, class Update>
T atomic_update(T* address, Update update) {
  T old, changed;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do changed = update(old);
  while (!__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED));
  return old;
}

}  // namespace fusegen_emulator

template <class T, class U>
T atomicAdd(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return T(old + T(v)); });
}
template <class T, class U>
T atomicMax(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return old < T(v) ? T(v) : old; });
}
template <class T, class U>
T atomicMin(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T old) { return T(v) < old ? T(v) : old; });
}
template <class T, class U>
T atomicExch(T* p, U v) {
  return fusegen_emulator::atomic_update(p, [v](T) { return T(v); });
}
template <class T>
T atomicCAS(T* p, T expected, T v) {
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
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dmul_rn(double x, double y) { return x * y; }
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
