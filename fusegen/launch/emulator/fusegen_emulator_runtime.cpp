// What the emulator does for every kernel alike: fibers, barriers, clusters, workers, errors. Compiled once for each
// number of blocks in a cluster and linked to every kernel; fusegen_emulator.h is what a kernel sees of it. Without C++
// exceptions, whose library takes longer to link than a kernel to compile.

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FUSEGEN_EMULATOR_RUNTIME
#include "fusegen_emulator.h"
#ifdef FUSEGEN_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace fusegen_emulator {

__thread Worker* worker;
__thread SharedRegion* shared_regions;
static __thread jmp_buf* leave_block;  // of a kernel without barriers

inline Block& block_of(Worker& w, const Fiber& fiber) { return w.blocks[kClusterBlocks == 1 ? 0 : fiber.rank]; }
inline unsigned block_threads(const Worker& w) { return w.threads / kClusterBlocks; }

// Takes the last letter away where it has lost its last bytes: what is left is UTF-8 again.
inline void end_at_a_letter(char* text) {
  const size_t bytes = strlen(text);
  size_t last = bytes;
  while (last && (text[last - 1] & 0xC0) == 0x80) --last;  // bytes that continue a letter
  if (!last || !(text[--last] & 0x80)) return;
  const unsigned char first = text[last];
  if (bytes - last < (first >= 0xF0 ? 4u : first >= 0xE0 ? 3u : 2u)) text[last] = '\0';
}

__attribute__((format(printf, 3, 0))) inline void vrecord(Launch& launch, Code code, const char* format, va_list rest) {
  int none = kOk;  // the first error wins: later ones are often its consequences
  if (!__atomic_compare_exchange_n(&launch.code, &none, code, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  const uint3 block = (worker->current ? block_of(*worker, *worker->current) : worker->blocks[0]).index;
  const int used = snprintf(launch.message, launch.message_bytes, "block (%u, %u, %u): ", block.x, block.y, block.z);
  const size_t room = launch.message_bytes - used;
  if (size_t(vsnprintf(launch.message + used, room, format, rest)) >= room) end_at_a_letter(launch.message);
}

__attribute__((format(printf, 3, 4))) inline void record(Launch& launch, Code code, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vrecord(launch, code, format, rest);
  va_end(rest);
}

inline bool failed(const Launch& launch) { return __atomic_load_n(&launch.code, __ATOMIC_RELAXED) != kOk; }

inline void suspend();

void fail(Code code, const char* format, ...) {
  va_list rest;
  va_start(rest, format);
  vrecord(*worker->launch, code, format, rest);
  va_end(rest);
  if (!worker->current) _longjmp(*leave_block, 1);  // kernels have no destructors
  for (;;) suspend();
}

void misplaced(int64_t place, int64_t size, int64_t position, int site) {
  Launch& launch = *worker->launch;
  while (__atomic_test_and_set(&launch.reporting, __ATOMIC_ACQUIRE)) sched_yield();
  if (!launch.misplaced || site < launch.site || (site == launch.site && position < launch.position)) {
    launch.misplaced = true;
    launch.site = site, launch.place = place, launch.size = size, launch.position = position;
  }
  __atomic_clear(&launch.reporting, __ATOMIC_RELEASE);
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

enum { kStackSlots = 64, kMostThreads = 1024 };  // of stacks that launches leave for each other, and of a block

}  // namespace fusegen_emulator

#include "fusegen_emulator_races.h"
#include "fusegen_emulator_fibers.h"
#include "fusegen_emulator_cluster.h"

namespace fusegen_emulator {

inline void poison_shared(Worker& w) {
  for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
    for (SharedRegion* region = shared_regions; region; region = region->next) {
      memset(region->data + rank * region->stride, 0xFF, region->bytes);
    }
    if (w.blocks[rank].dynamic_shared) memset(w.blocks[rank].dynamic_shared, 0xFF, w.launch->shared_bytes);
  }
}

inline uint3 block_index(uint64_t linear, const dim3& grid) {
  const uint64_t plane = linear / grid.x;
  return {unsigned(linear % grid.x), unsigned(plane % grid.y), unsigned(plane / grid.y)};
}

inline void run_block(Worker& w) {
  if (!w.launch->entry.block) return run_fibers(w);
  if (w.order) shuffle_order(w);
  jmp_buf here;
  leave_block = &here;
  if (_setjmp(here) == 0) w.launch->entry.block(w);  // else fail() came back, and has recorded why
}

inline void run_blocks(Worker& w) {
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
      if (w.block_index) *w.block_index = w.blocks[0].index;
      w.random = launch.seed ^ (linear * 0xD1342543DE82EF95u);  // its own: no matter which worker runs it
      poison_shared(w);
      begin_cluster(w, linear);
      run_block(w);
    }
  }
}

// AddressSanitizer sees the end of exactly the size asked for; a search for races wants pages of its own.
inline size_t shared_bytes_of(const Launch& launch) {
  return kRaces ? (launch.shared_bytes + kSharedUnit - 1) / kSharedUnit * kSharedUnit : launch.shared_bytes;
}

inline void* run_worker(void* argument) {
  Worker w = {};
  w.launch = static_cast<Launch*>(argument);
  Launch& launch = *w.launch;
  worker = &w;
  w.threads = launch.block.x * launch.block.y * launch.block.z * kClusterBlocks;
  bool ready = begin_launch(w);
  if (launch.entry.start) launch.entry.start(w);
  if (launch.shuffle) {
    w.order = static_cast<unsigned*>(malloc(w.threads * sizeof(unsigned)));
    ready = ready && w.order;
    for (unsigned i = 0; ready && i < w.threads; ++i) w.order[i] = i;
  }
  for (Block& block : w.blocks) {
    void* shared = nullptr;
    if (launch.shared_bytes) ready = ready && posix_memalign(&shared, kSharedUnit, shared_bytes_of(launch)) == 0;
    block.dynamic_shared = static_cast<unsigned char*>(shared);
#ifdef FUSEGEN_ASAN
    if (shared) {
      __asan_poison_memory_region(block.dynamic_shared + launch.shared_bytes, shared_bytes_of(launch) - launch.shared_bytes);
    }
#endif
  }
  if (ready && (launch.entry.block || create_fibers(w))) {
    run_blocks(w);
  } else {
    record(launch, kResources, "no memory for %u threads' stacks and %zu bytes of shared memory", w.threads,
           launch.shared_bytes * kClusterBlocks);
  }
  for (Stacks* stacks : w.stacks) {
    if (stacks) give_back_stacks(stacks, launch.stack_slots);
  }
  end_launch(w);
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
int launch_kernel(const Entry* entry, const unsigned* grid, const unsigned* block, void** params, size_t shared_bytes,
                  int shuffle, uint64_t seed, int workers, void** stack_slots, char* message, size_t message_bytes) {
  Launch launch = {};
  launch.entry = *entry;
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
  uint64_t wanted = workers < 1 || kRaces ? 1 : workers > kMostWorkers ? kMostWorkers : workers;
  if (wanted > launch.clusters) wanted = launch.clusters;
  if (kClusterBlocks > 1) wanted = workers_for_clusters(wanted, launch.block);
  launch.chunk = launch.clusters / (wanted * 16) + 1;
  unsigned started = 0;
  while (started + 1 < wanted && pthread_create(&threads[started], nullptr, run_worker, &launch) == 0) ++started;
  run_worker(&launch);
  while (started) pthread_join(threads[--started], nullptr);
  if (launch.code != kOk || !launch.misplaced) return launch.code;
  snprintf(message, message_bytes, "%d %lld %lld %lld", launch.site, (long long)launch.place, (long long)launch.size,
           (long long)launch.position);
  return kMisplaced;
}

}  // namespace fusegen_emulator

// What a library is, for who loads it.
extern "C" __attribute__((visibility("default"))) unsigned fusegen_emulated_cluster() {
  return fusegen_emulator::kClusterBlocks;
}
extern "C" __attribute__((visibility("default"))) bool fusegen_emulated_races() { return fusegen_emulator::kRaces; }
