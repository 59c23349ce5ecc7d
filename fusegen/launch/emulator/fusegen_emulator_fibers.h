// The emulator's fibers: threads of a block or cluster on one OS thread, switched at barriers and warp collectives.
// Part of fusegen_emulator_runtime.cpp.
#pragma once

namespace fusegen_emulator {

#ifdef FUSEGEN_UCONTEXT
inline void fusegen_switch(Context* save, Context* load) { swapcontext(save, load); }
#else
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
  if (fiber) *w.thread_index = fiber->index, run_as(w, *fiber);
  if (fiber && kClusterBlocks > 1) *w.block_index = block_of(w, *fiber).index;
  start_switch(fake_stack, fiber ? fiber->stack : w.scheduler_stack, fiber ? kStackBytes : w.scheduler_stack_bytes);
  fusegen_switch(from, fiber ? &fiber->context : &w.scheduler);
  finish_switch(*fake_stack, nullptr, nullptr);
}

inline void suspend() {
  Worker& w = *worker;
  Fiber& self = *w.current;
  switch_to(w, &self.context, &self.fake_stack, next_in_round(w));
}

inline void release_barrier(Worker& w, Block& block) {
  if (!block.at_barrier || block.at_barrier != block.live) return;
  meet(w, block.fibers, block_threads(w), [&block](unsigned i) { return block.fibers[i].state == kAtBarrier; });
  const Fiber* first = nullptr;
  for (unsigned i = 0; i < block_threads(w); ++i) {
    Fiber& fiber = block.fibers[i];
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
  block.at_barrier = 0;
}

// Lets the threads of one threadIdx.y go once all of them that still live have arrived.
inline void release_row(Worker& w, Block& block, unsigned row) {
  const unsigned count = w.launch->block.x;
  Fiber* const threads = block.fibers + row * count;
  const Fiber* first = nullptr;
  for (unsigned i = 0; i < count; ++i) {
    if (threads[i].state == kExited) continue;
    if (threads[i].state != kAtRow) return;
    if (!first) first = &threads[i];
    if (threads[i].site.line != first->site.line) {
      return record(*w.launch, kDivergence,
                    "threads of row %u of a block meet in different barriers: thread %u at %s:%d, thread %u at %s:%d", row,
                    first->index.x, first->site.file, first->site.line, i, threads[i].site.file, threads[i].site.line);
    }
  }
  if (!first) return;
  meet(w, threads, count, [threads](unsigned i) { return threads[i].state == kAtRow; });
  for (unsigned i = 0; i < count; ++i) {
    if (threads[i].state != kAtRow) continue;
    threads[i].state = kReady;
    --block.at_row;
  }
}

// Lets the lanes of `mask` go once all that still live have arrived with that same mask.
inline void release_collective(Worker& w, Block& block, unsigned warp, uint32_t mask) {
  const uint32_t group = mask & block.warp_live[warp];
  if (group & ~block.warp_waiting[warp]) return;
  Fiber* lanes = block.fibers + warp * 32;
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
  if (first->orders) meet(w, lanes, 32, [group](unsigned lane) { return group >> lane & 1; });
  for (int lane = 0; lane < 32; ++lane) {
    if (!(group >> lane & 1)) continue;
    Fiber& fiber = lanes[lane];  // a lane that takes no part has no value to give: hardware says "undefined"
    fiber.received = (group >> fiber.source & 1) ? lanes[fiber.source].sent : ~uint64_t(0);
    fiber.votes = votes;
    fiber.state = kReady;
  }
  block.warp_waiting[warp] &= ~group;
}

__attribute__((noreturn, cold)) inline void fail_without_barriers(const Site& site) {
  fail(kDivergence, "%s at %s:%d in a kernel built with barriers=False", site.what, site.file, site.line);
}

void wait_barrier(const Site& site) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  Block& block = block_of(w, self);
  self.state = kAtBarrier;
  self.site = site;
  ++block.at_barrier;
  release_barrier(w, block);
  if (self.state != kReady || w.order || failed(*w.launch)) suspend();
}

void wait_row(const Site& site) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  Block& block = block_of(w, self);
  self.state = kAtRow;
  self.site = site;
  ++block.at_row;
  release_row(w, block, self.index.y);
  if (self.state != kReady || w.order || failed(*w.launch)) suspend();
}

inline const Fiber& wait_lanes(const Site& site, uint32_t mask, uint64_t sent, int source, bool orders) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  Block& block = block_of(w, self);
  const unsigned thread = unsigned(&self - block.fibers), warp = thread / 32;
  if (!(mask >> thread % 32 & 1)) {
    fail(kDivergence, "%s at %s:%d: lane %u calls it with mask 0x%08x, which leaves it out", site.what, site.file,
         site.line, thread % 32, mask);
  }
  self.site = site, self.mask = mask, self.sent = sent, self.source = source, self.orders = orders;
  self.state = kAtCollective;
  block.warp_waiting[warp] |= 1u << thread % 32;
  release_collective(w, block, warp, mask);
  if (self.state != kReady || w.order || failed(*w.launch)) suspend();
  return self;
}

const Fiber& wait_collective(const Site& site, uint32_t mask, uint64_t sent, int source) {
  return wait_lanes(site, mask, sent, source, false);
}

void wait_warp(const Site& site, uint32_t mask) { wait_lanes(site, mask, 0, 0, true); }

inline void leave_cluster(Worker& w, Block& block, const Fiber& self);

inline void exit_thread(Worker& w, Fiber& self) {
  Block& block = block_of(w, self);
  const unsigned thread = unsigned(&self - block.fibers), warp = thread / 32;
  self.state = kExited;
  --w.live;
  --block.live;
  block.warp_live[warp] &= ~(1u << thread % 32);
  release_barrier(w, block);  // as on hardware since Volta, barriers count the threads that have not exited
  if (block.at_row) release_row(w, block, self.index.y);
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (block.warp_waiting[warp] >> lane & 1) {
      release_collective(w, block, warp, block.fibers[warp * 32 + lane].mask);
    }
  }
  if (w.cluster) leave_cluster(w, block, self);
}

inline void fiber_main() {
  Worker& w = *worker;
  const bool first = !w.scheduler_stack;  // only the first fiber surely comes from the scheduler
  finish_switch(nullptr, first ? &w.scheduler_stack : nullptr, first ? &w.scheduler_stack_bytes : nullptr);
  for (;;) {  // once per block: the next block resumes the fiber here
    w.launch->entry.thread(w.launch->params);
    exit_thread(w, *w.current);
    suspend();
  }
}

inline void record_deadlock(Worker& w) {
  char text[1200];
  int used = 0;
  for (unsigned i = 0; i < w.threads && used < 900; ++i) {
    const Fiber& first = w.fibers[i];
    if (first.state == kExited) continue;
    const auto waits_there = [&first](const Fiber& other) {
      return other.state == first.state && other.site.line == first.site.line;
    };
    unsigned j = 0, count = 0;
    while (!waits_there(w.fibers[j])) ++j;
    if (j < i) continue;  // told already
    for (; j < w.threads; ++j) count += waits_there(w.fibers[j]);
    used += snprintf(text + used, sizeof text - used, "; %u at %s (%s:%d), the first is thread (%u, %u, %u)", count,
                     first.site.what, first.site.file, first.site.line, first.index.x, first.index.y, first.index.z);
    if (kClusterBlocks > 1) used += snprintf(text + used, sizeof text - used, " of the cluster's block %u", first.rank);
  }
  record(*w.launch, kDivergence, "deadlock: %u of %u threads have exited and the others wait%s", w.threads - w.live,
         w.threads, text);
}

// Stacks for the largest block, kept between launches (mapping and first touch cost more than a small kernel). `slots`
// belongs to the Python process and serves every kernel; a slot is taken and given back whole, so no lock can outlive
// a fork().
struct Stacks {
  unsigned prepared;  // the first so many stacks have their guard page
  size_t page, stride;
  char* stack(unsigned i) { return reinterpret_cast<char*>(this) + page + i * stride + page; }
};
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

inline char* guarded_stack(Stacks& stacks, unsigned i) {
  if (i >= stacks.prepared) {  // overflow faults instead of hurting a neighbour
    mprotect(stacks.stack(i) - stacks.page, stacks.page, PROT_NONE);
    stacks.prepared = i + 1;
  }
  return stacks.stack(i);
}

inline bool create_fibers(Worker& w) {
  const unsigned count = block_threads(w);
  w.fibers = static_cast<Fiber*>(calloc(w.threads, sizeof(Fiber)));
  if (!w.fibers) return false;
  for (unsigned i = 0; i < w.threads; ++i) {
    Stacks*& stacks = w.stacks[i / kMostThreads];
    if (!stacks) stacks = take_stacks(w.launch->stack_slots);
    if (!stacks) return false;
    Fiber& fiber = w.fibers[i];
    fiber.rank = i / count;
    fiber.index = thread_index(i % count, w.launch->block);
    fiber.stack = guarded_stack(*stacks, i % kMostThreads);
    if (i % count == 0) w.blocks[fiber.rank].fibers = &fiber;
#ifdef FUSEGEN_UCONTEXT
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack;
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, fiber_main, 0);
#else
    // Tops differ by a few cache lines, or all stacks would compete for the same sets of the first-level cache.
    char* frame = fiber.stack + kStackBytes - i % 32 * 128 - kFrameBytes;
    void (*entry)() = fiber_main;
    memcpy(frame + kEntrySlot, &entry, sizeof entry);
    fiber.context = frame;
#endif
  }
  return true;
}

// Fibers hand over to each other until the end of the round. False: none was ready.
inline bool run_round(Worker& w, unsigned begin, unsigned end) {
  w.round_next = begin, w.round_end = end;
  Fiber* first = next_in_round(w);
  if (first) switch_to(w, &w.scheduler, &w.fake_stack, first);
  return first;
}

inline void start_fibers(Worker& w, Block& block) {
  const unsigned threads = block_threads(w);
  block.live = threads;
  block.at_barrier = block.at_row = 0;
  for (unsigned warp = 0; warp * 32 < threads; ++warp) {
    const unsigned lanes = threads - warp * 32;
    block.warp_live[warp] = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    block.warp_waiting[warp] = 0;
  }
  for (unsigned i = 0; i < threads; ++i) block.fibers[i].state = kReady;
}

inline bool run_warps(Worker& w, const Block& block) {
  const unsigned first = unsigned(block.fibers - w.fibers), last = first + block_threads(w);
  bool progress = false;
  for (unsigned begin = first; begin < last; begin += 32) {
    while (run_round(w, begin, begin + 32 < last ? begin + 32 : last)) progress = true;
  }
  return progress;
}

inline void start_cluster(Worker& w);

// Natural order runs a warp until all its lanes wait for the block (its stacks stay in the cache); shuffled order
// draws a new permutation of the whole block, or cluster, for every round.
inline void run_fibers(Worker& w) {
  w.live = w.threads;
  for (Block& block : w.blocks) start_fibers(w, block);
  if (w.cluster) start_cluster(w);
  while (w.live && !failed(*w.launch)) {
    bool progress = false;
    if (w.order) {
      shuffle_order(w);
      progress = run_round(w, 0, w.threads);
    } else {
      for (const Block& block : w.blocks) progress |= run_warps(w, block);
    }
    if (!progress && !failed(*w.launch)) record_deadlock(w);
  }
}

}  // namespace fusegen_emulator
