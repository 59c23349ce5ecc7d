// The emulator's fibers: a block's threads on one OS thread, switched at barriers and warp collectives.
// Part of fusegen_emulator.h.
#pragma once

namespace fusegen_emulator {

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

}  // namespace fusegen_emulator
