// Races: accesses of two threads to the same bytes, at least one of them to write, of which neither lies before the other.
// Part of fusegen_emulator_runtime.cpp.
//
// Kernels are compiled with -fsanitize=thread and without its library: the compiler puts a call before every load and
// store, and the functions that it calls are here. They find the race whatever the order in which threads happened to run.
// Where AddressSanitizer looks on as well, it is its calls that are answered here, and its library is asked what it knows
// of the bytes: one instrumentation finds both.
// What orders accesses:
//
//   __syncthreads()               those of the block's threads that take part; a thread that has returned does not
//   __syncwarp()                  the lanes of its mask; shuffles and votes exchange values, and order no memory
//   cluster_arrive(), _wait()     what lies before the one in any thread, before what follows the other
//   Link                          what its sender has done, before what follows the receipt
//   atomics                       each other; between two calls of __threadfence(), the threads as well
//   load_async(), await_loads()   a copy is its thread's own only once that has waited
//   wait_for_previous_kernel()    the kernel before, where this one may start early
//   launches                      everything else
#pragma once

#ifdef FUSEGEN_EMULATOR_RACES
#include "fusegen_emulator_clocks.h"
#include "fusegen_emulator_shadow.h"

// Where the library begins.
#ifdef __APPLE__
extern "C" const char __ehdr_start[] asm("___dso_handle");
#else
extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start[];
#endif

namespace fusegen_emulator {

enum { kSharedUnit = kPageBytes };
enum : size_t { kEnough = 16 << 20 };

// ---- the running thread and its clock --------------------------------------------------------------------------------

struct Copy {
  Copy* next;
  uintptr_t target, source;
  size_t bytes;
  uint32_t issued, place;
};

struct Agent {  // a thread
  const Clock* clock;
  Copy* copies;             // under way
  const Clock* released;         // by its last fence, to whoever sees a later atomic of it
  const RemoteClocks* acquired;  // by atomics since then: part of its own clock from its next fence on
};

struct Released {  // through atomics at an address
  uintptr_t address;
  const RemoteClocks* all;
  Released* next;
};

struct Messages {
  ClockJoin sent;
  const Clock* come;
};

struct Races {
  Shadow* shadow;
  Page* recent[kRecent];
  uintptr_t stack;  // of the running thread, where nobody else has anything
  size_t stack_bytes;
  Agent* agent;
  uint32_t cluster, now;
  uint16_t launch, before, thread;
  bool ordered_by_nothing;  // a kernel without barriers
  bool keeps;               // clocks of other clusters, because there have been fences
  unsigned threads;         // of a block
  Arena clocks;             // and copies under way
  size_t enough;            // bytes of them before what is of no use is given back
  Arena tables[2];          // of readers: of global memory, for the launch; of shared memory, for the cluster
  Readers* unused[2];
  const Clock *joined[2], *join;
  ClockJoin arrivals;
  const Clock* arrived;
  Messages messages[kClusterBlocks][2];
  Released* released;
  const RemoteClocks** work;
  size_t work_capacity;
  uint32_t visits;
  uint3 thread_index, block_index;
  Clock start;
  union {
    Times nothing;
    uint32_t words[sizeof(Times) / sizeof(uint32_t) + kMostInBlock];
  };
  Agent* agents;
  const signed char* addressable;  // AddressSanitizer's shadow
};

inline Agent& agent_of(Races& r, const Worker& w, const Fiber& fiber) { return r.agents[&fiber - w.fibers]; }

inline bool begin_launch(Worker& w) {
  Races* const r = static_cast<Races*>(calloc(1, sizeof(Races)));
  if (!r) return false;
  w.races = r;
  w.thread_index = &r->thread_index, w.block_index = &r->block_index;
  r->threads = w.threads / kClusterBlocks;
  r->ordered_by_nothing = w.launch->entry.block;
  r->agents = static_cast<Agent*>(calloc(w.threads, sizeof(Agent)));
#ifdef FUSEGEN_ASAN
  size_t scale, offset;
  __asan_get_shadow_mapping(&scale, &offset);
  r->addressable = reinterpret_cast<const signed char*>(offset);
#endif
  r->shadow = take_shadow(w.launch->stack_slots + kStackSlots, kStackSlots);
  if (!r->shadow || !r->agents) return false;
  for (const Times*& times : r->start.known) times = &r->nothing;
  Shadow& shadow = *r->shadow;
  const bool follows = w.launch->entry.early && pthread_equal(shadow.owner, pthread_self()) && shadow.launch < kLastLaunch;
  r->before = follows ? shadow.launch : uint16_t(kNoLaunch);
  r->start.awaited = !follows || shadow.launch == kNoLaunch;
  if (shadow.launch >= kLastLaunch) free_pages(shadow, kNoLaunch), shadow.launch = kNoLaunch;
  if (shadow.bytes > kMostKept) free_pages(shadow, r->before);
  r->launch = ++shadow.launch;
  return true;
}

inline void end_launch(Worker& w) {
  while (SharedRegion* const region = shared_regions) {
    shared_regions = region->next;
    free(region);
  }
  Races* const r = w.races;
  if (!r) return;
  if (r->shadow) {
    snprintf(r->shadow->kernel, sizeof r->shadow->kernel, "%s", w.launch->entry.name);
    r->shadow->owner = pthread_self();
    give_back(r->shadow, w.launch->stack_slots + kStackSlots, kStackSlots);
  }
  release(r->clocks);
  for (Arena& tables : r->tables) release(tables);
  free(r->work);
  free(r->agents);
  free(r);
}

inline void begin_cluster(Worker& w, uint64_t number) {
  Races& r = *w.races;
  r.cluster = r.start.cluster = uint32_t(number), r.now = 1;
  if (!r.keeps) reset(r.clocks);
  r.enough = kEnough;
  reset(r.tables[true]), r.unused[true] = nullptr;
  r.start.moved = nullptr, r.nothing.moved = nullptr;
  r.joined[0] = nullptr, r.arrivals = ClockJoin(), r.arrived = nullptr;
  for (auto& of_block : r.messages) of_block[0] = of_block[1] = Messages();
  for (unsigned i = 0; i < w.threads; ++i) r.agents[i] = {&r.start, nullptr, nullptr, nullptr};
  const uintptr_t here = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
  r.stack_bytes = 8 << 20, r.stack = here - r.stack_bytes;  // of threads that are no fibers: below this
}

inline void run_as(Worker& w, const Fiber& fiber) {
  Races& r = *w.races;
  r.agent = &agent_of(r, w, fiber);
  r.thread = uint16_t(fiber.rank << 10 | (unsigned(&fiber - w.fibers) - fiber.rank * r.threads));
  r.stack = reinterpret_cast<uintptr_t>(fiber.stack), r.stack_bytes = kStackBytes;
}

void run_alone(Worker& w, const uint3& thread) {
  Races& r = *w.races;
  const dim3& block = w.launch->block;
  r.thread_index = thread;
  r.thread = uint16_t(thread.x + block.x * (thread.y + block.y * thread.z));
  r.agent = &r.agents[r.thread];
}

uint3 running_thread() { return worker->races->thread_index; }
uint3 running_block() { return worker->races->block_index; }
dim3 block_size() { return worker->launch->block; }
dim3 grid_size() { return worker->launch->grid; }

// ---- what lies before what ---------------------------------------------------------------------------------------

inline bool acquired(Races& r, const Stamp& stamp) {
  const uint32_t visit = ++r.visits;
  size_t left = 0;
  const auto push = [&](const RemoteClocks* next) {
    if (!next || next->visit == visit) return;
    next->visit = visit;
    if (left == r.work_capacity) {
      const size_t wanted = 2 * r.work_capacity + 64;
      const RemoteClocks** const work = static_cast<const RemoteClocks**>(realloc(r.work, wanted * sizeof *work));
      if (!work) fail(kResources, "no memory for %zu clocks of other blocks", wanted);
      r.work = work, r.work_capacity = wanted;
    }
    r.work[left++] = next;
  };
  push(r.agent->clock->remote);
  while (left) {
    const RemoteClocks& one = *r.work[--left];
    push(one.first), push(one.second);
    if (!one.clock) continue;
    if (one.clock->cluster == stamp.cluster &&
        one.clock->known[stamp.thread >> 10]->of[stamp.thread & 1023] >= stamp.time && stamp.time != kUnderWay) {
      return true;
    }
    push(one.clock->remote);
  }
  return false;
}

// Whether the running thread's next access comes after that of the stamp.
inline bool lies_before(Races& r, const Stamp& stamp) {
  if (stamp.launch != r.launch) return false;
  const Clock& clock = *r.agent->clock;
  if (stamp.cluster == r.cluster) {
    if (stamp.thread == r.thread) return stamp.time != kUnderWay;
    if (clock.known[stamp.thread >> 10]->of[stamp.thread & 1023] >= stamp.time) return true;
  }
  return clock.remote && acquired(r, stamp);
}

// Whether the stamp is of an access that the running thread could meet.
inline bool concerns(const Races& r, const Page& page, const Stamp& stamp) {
  if (stamp.launch == r.launch) return !page.shared || stamp.cluster == r.cluster;
  return stamp.launch == r.before && stamp.launch != kNoLaunch && !page.shared && !r.agent->clock->awaited;
}

// ---- reports -----------------------------------------------------------------------------------------------------

enum Kind { kRead, kWrite, kUpdate, kCopyInto, kCopyFrom };

struct Access {
  Kind kind;
  uintptr_t address;
  size_t bytes;
  uint32_t place;
};

inline int name_memory(const Worker& w, const Access& access, bool shared, char* text, size_t bytes) {
  if (shared) {
    for (const SharedRegion* region = shared_regions; region; region = region->next) {
      const uintptr_t offset = access.address - reinterpret_cast<uintptr_t>(region->data);
      if (offset >= region->stride * kClusterBlocks) continue;
      return snprintf(text, bytes, "shared memory, %.200s + %zu", region->name, size_t(offset % region->stride));
    }
    for (const Block& block : w.blocks) {
      const uintptr_t offset = access.address - reinterpret_cast<uintptr_t>(block.dynamic_shared);
      if (block.dynamic_shared && offset < w.launch->shared_bytes) {
        return snprintf(text, bytes, "dynamic shared memory + %zu", size_t(offset));
      }
    }
  }
  unsigned found = w.launch->entry.parameters;
  uintptr_t nearest = 0;
  for (unsigned i = 0; i < w.launch->entry.parameters; ++i) {
    if (!w.launch->entry.is_pointer[i]) continue;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(*static_cast<void**>(w.launch->params[i]));
    if (begin <= access.address && begin >= nearest) nearest = begin, found = i;
  }
  if (found == w.launch->entry.parameters) return snprintf(text, bytes, "global memory");
  return snprintf(text, bytes, "global memory, parameter %u + %zu", found, size_t(access.address - nearest));
}

inline int name_thread(const Worker& w, const Races& r, const Stamp& stamp, char* text, size_t bytes) {
  const uint3 thread = thread_index(stamp.thread & 1023, w.launch->block);
  int used = snprintf(text, bytes, "thread (%u, %u, %u)", thread.x, thread.y, thread.z);
  if (stamp.cluster != r.cluster || stamp.thread >> 10 != r.thread >> 10) {
    const uint64_t block = uint64_t(stamp.cluster) * kClusterBlocks + (stamp.thread >> 10);
    const dim3& grid = w.launch->grid;
    used += snprintf(text + used, bytes - used, " of block (%u, %u, %u)", unsigned(block % grid.x),
                     unsigned(block / grid.x % grid.y), unsigned(block / grid.x / grid.y));
  }
  return used;
}

inline const char* missing(const Races& r, const Stamp& other) {
  if (other.time == kUnderWay) return "and has not called fg::await_loads() since";
  if (other.cluster != r.cluster) {
    return "and nothing orders the blocks of a launch but atomics between calls of __threadfence()";
  }
  if (other.thread >> 10 != r.thread >> 10) return "and neither a cluster barrier nor a message lies between";
  if (other.thread >> 5 == r.thread >> 5) {
    return "and neither __syncwarp() nor __syncthreads() lies between (shuffles and votes order no memory)";
  }
  return "and no __syncthreads() that both take part in lies between";
}

__attribute__((noreturn, cold, noinline)) inline void report(
    Races& r, const Page& page, const Access& access, const Stamp& other, Kind of_other) {
  static const char* const does[] = {"reads", "writes", "updates", "copies into", "copies from"};
  const Worker& w = *worker;
  char text[800];
  Stamp self = {};
  self.cluster = r.cluster, self.thread = r.thread;
  int used = name_thread(w, r, self, text, sizeof text);
  used += snprintf(text + used, sizeof text - used, " %s %zu bytes of ", does[access.kind], access.bytes);
  used += name_memory(w, access, page.shared, text + used, sizeof text - used);
  used += snprintf(text + used, sizeof text - used, " at instruction 0x%x; ", access.place);
  if (other.launch != r.launch) {
    fail(kRace, "%sthe kernel before it, %.200s, %s them as well, and fg::wait_for_previous_kernel() has not been called",
         text, r.shadow->kernel, does[of_other]);
  }
  used += name_thread(w, r, other, text + used, sizeof text - used);
  if (other.time == kUnderWay) of_other = kCopyInto;
  fail(kRace, "%s %s them at instruction 0x%x, %s", text, does[of_other], other.place, missing(r, other));
}

__attribute__((noreturn, cold, noinline)) inline void report_misaligned(const Access& access, size_t alignment) {
  const Worker& w = *worker;
  char text[400];
  name_memory(w, access, false, text, sizeof text);
  const uint3 thread = thread_index(w.races->thread & 1023, w.launch->block);
  fail(kMisaligned, "thread (%u, %u, %u) accesses %zu bytes of %s, at no multiple of %zu bytes, at instruction 0x%x",
       thread.x, thread.y, thread.z, access.bytes, text, alignment, access.place);
}

#ifdef FUSEGEN_ASAN
extern "C" void __asan_report_error(void* place, void* frame, void* stack, void* address, int writes, size_t bytes);
extern "C" void __asan_get_shadow_mapping(size_t* scale, size_t* offset);

// Ends the process where AddressSanitizer knows that the bytes are nobody's. A byte of its shadow is 0 where all of the
// eight that it stands for may be accessed.
inline void check_addressable(const Races& r, const Access& access) {
  signed char any = 0;
  for (uintptr_t eight = access.address / 8; eight <= (access.address + access.bytes - 1) / 8; ++eight) {
    any |= r.addressable[eight];
  }
  void* const address = reinterpret_cast<void*>(access.address);
  if (!any || !__asan_region_is_poisoned(address, access.bytes)) return;
  void* const frame = __builtin_frame_address(0);
  char* const place = const_cast<char*>(__ehdr_start) + access.place;
  __asan_report_error(place, frame, frame, address, access.kind != kRead, access.bytes);
}
#endif

// ---- accesses ----------------------------------------------------------------------------------------------------

inline Stamp stamp_of(const Races& r, uint32_t place) {
  Stamp stamp = {};
  stamp.time = r.now, stamp.place = place;
  stamp.cluster = r.cluster, stamp.launch = r.launch, stamp.thread = r.thread;
  return stamp;
}

inline unsigned table_index(const Races& r, unsigned thread) { return (thread >> 10) * r.threads + (thread & 1023); }

inline Readers* new_readers(Races& r, bool shared, bool two) {
  const size_t bytes = two ? 2 * sizeof(Stamp) : r.threads * kClusterBlocks * sizeof(Readers::Last);
  Readers* found = two ? nullptr : r.unused[shared];
  if (found) {
    r.unused[shared] = found->next;
  } else {
    found = static_cast<Readers*>(allocate(r.tables[shared], sizeof(Readers) + bytes));
  }
  found->next = nullptr, found->two = two;
  memset(static_cast<void*>(found + 1), 0, bytes);
  return found;
}

// Those of earlier launches, and in shared memory of earlier clusters, have gone with their arena.
inline bool has_table(const Races& r, const Page& page, const Stamp& reads) {
  const bool there = reads.launch == r.launch && (!page.shared || reads.cluster == r.cluster);
  return there && reads.several && !reads.readers->two;
}

inline void drop_readers(Races& r, const Page& page, Stamp& reads) {
  if (has_table(r, page, reads)) {
    reads.readers->next = r.unused[page.shared];
    r.unused[page.shared] = reads.readers;
  }
  reads.launch = kNoLaunch, reads.several = 0;
}

inline Stamp one_of_table(const Races& r, const Stamp& reads, unsigned index) {
  const Readers::Last& last = reads.readers->last()[index];
  Stamp one = reads;
  one.several = 0;
  one.time = last.time, one.place = last.place;
  one.thread = uint16_t(index / r.threads << 10 | index % r.threads) & 0x3FFF;
  return one;
}

inline Stamp latest(const Races& r, const Stamp& reads) {
  if (!reads.several) return reads;
  if (reads.readers->two) return reads.readers->stamps()[1];
  unsigned found = 0;
  for (unsigned i = 1; i < r.threads * kClusterBlocks; ++i) {
    if (reads.readers->last()[i].time > reads.readers->last()[found].time) found = i;
  }
  return one_of_table(r, reads, found);
}

// Adds the running thread's read to those that lie before nothing.
inline void add_reader(Races& r, const Page& page, Stamp& reads, const Stamp& mine) {
  if (!concerns(r, page, reads) || reads.launch != r.launch) {
    reads = mine;
    return;
  }
  if (!reads.several) {
    if (lies_before(r, reads)) {
      reads = mine;
      return;
    }
    const bool two = r.ordered_by_nothing || reads.cluster != r.cluster;
    Readers* const all = new_readers(r, page.shared, two);
    if (two) {
      all->stamps()[0] = reads, all->stamps()[1] = mine;
    } else {
      all->last()[table_index(r, reads.thread)] = {reads.time, reads.place};
      all->last()[table_index(r, mine.thread)] = {mine.time, mine.place};
    }
    reads.readers = all, reads.several = 1;
    return;
  }
  if (reads.readers->two) return;
  if (reads.cluster == r.cluster) {
    reads.readers->last()[table_index(r, mine.thread)] = {mine.time, mine.place};
    return;
  }
  unsigned any = 0;
  while (!reads.readers->last()[any].time) ++any;
  const Stamp one = one_of_table(r, reads, any);
  drop_readers(r, page, reads);
  Readers* const all = new_readers(r, page.shared, true);
  all->stamps()[0] = one, all->stamps()[1] = mine;
  reads = mine;
  reads.readers = all, reads.several = 1;
}

// All that have read it, or updated it by atomics, must lie before what the running thread does now.
inline void check_readers(Races& r, const Page& page, const Stamp& reads, const Access& access) {
  const Kind kind = reads.atomic ? kUpdate : kRead;
  const auto check = [&](const Stamp& one) {
    if (!lies_before(r, one)) report(r, page, access, one, kind);
  };
  if (!reads.several || reads.launch != r.launch) return check(reads);
  if (reads.readers->two) return check(reads.readers->stamps()[0]), check(reads.readers->stamps()[1]);
  const Readers::Last* const last = reads.readers->last();
  for (unsigned i = 0; i < r.threads * kClusterBlocks; ++i) {
    if (last[i].time) check(one_of_table(r, reads, i));
  }
}

template <Kind kind>
inline void check_cell(Races& r, const Page& page, Cell& cell, const Access& access) {
  constexpr bool atomic = kind == kUpdate;
  Stamp mine = stamp_of(r, access.place);
  mine.atomic = atomic;
  const Stamp& write = cell.write;
  if (concerns(r, page, write) && !(atomic && write.atomic) && !lies_before(r, write)) {
    report(r, page, access, write, write.atomic ? kUpdate : kWrite);
  }
  Stamp& reads = cell.read;
  if (kind == kRead || kind == kUpdate) {
    if (concerns(r, page, reads) && reads.atomic != atomic) {
      check_readers(r, page, reads, access);
      if (reads.atomic && reads.launch == r.launch) cell.write = latest(r, reads);  // the next reader must know of it too
      drop_readers(r, page, reads);
    }
    add_reader(r, page, reads, mine);
    return;
  }
  if (concerns(r, page, reads)) check_readers(r, page, reads, access);
  drop_readers(r, page, reads);
  if (kind == kCopyInto) mine.time = kUnderWay;
  cell.write = mine;
}

inline bool is_shared(const Worker& w, uintptr_t address) {
  for (const SharedRegion* region = shared_regions; region; region = region->next) {
    if (address - reinterpret_cast<uintptr_t>(region->data) < region->stride * kClusterBlocks) return true;
  }
  for (const Block& block : w.blocks) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(block.dynamic_shared);
    if (begin && address - begin < w.launch->shared_bytes) return true;
  }
  return false;
}

// Finer cells, each with the accesses of the one that it was part of.
inline void split(Races& r, Page& page, unsigned shift) {
  const unsigned before = page.shift, coarse = page.count();
  grow(*r.shadow, page, shift);
  for (unsigned i = coarse; i-- > 0;) {
    const Cell cell = page.cells[i];
    const unsigned pieces = 1u << (before - shift);
    for (unsigned k = pieces; k-- > 0;) {
      Cell& piece = page.cells[i * pieces + k] = cell;
      if (!k || !has_table(r, page, cell.read)) continue;
      piece.read.readers = new_readers(r, page.shared, false);
      memcpy(piece.read.readers->last(), cell.read.readers->last(),
             r.threads * kClusterBlocks * sizeof(Readers::Last));
    }
  }
}

__attribute__((noinline)) inline Page& enter_page(Races& r, uintptr_t number, unsigned finest) {
  Page& page = find_page(*r.shadow, number);
  if (page.launch != r.launch) {
    const bool shared = is_shared(*worker, number << kPageBits), known = page.launch == r.before && page.cells;
    if (known && shared == page.shared && !shared) {  // what the kernel before has done here still matters
      if (finest < page.shift) split(r, page, finest);
    } else {
      if (known) memset(static_cast<void*>(page.cells), 0, page.capacity * sizeof(Cell));
      grow(*r.shadow, page, finest);
    }
    page.launch = r.launch, page.shared = shared;
  }
  r.recent[number % kRecent] = &page;
  return page;
}

template <class Visit>
inline void each_cell(Races& r, uintptr_t address, size_t bytes, const Visit& visit) {
  while (bytes) {
    const uintptr_t number = address >> kPageBits, offset = address & (kPageBytes - 1);
    const size_t here = bytes < kPageBytes - offset ? bytes : kPageBytes - offset;
    const unsigned finest = unsigned(__builtin_ctzll(offset | here | 1u << kCoarsest));
    Page* page = r.recent[number % kRecent];
    if (!page || page->number != number) page = &enter_page(r, number, finest);
    if (finest < page->shift) split(r, *page, finest);
    Cell* const end = page->cells + ((offset + here) >> page->shift);
    for (Cell* cell = page->cells + (offset >> page->shift); cell < end; ++cell) visit(*page, *cell);
    address += here, bytes -= here;
  }
}

template <Kind kind>
inline void check_access(const void* pointer, size_t bytes, uint32_t place) {
  Worker* const w = worker;
  if (!w) return;  // a library being loaded
  Races& r = *w->races;
  const Access access = {kind, reinterpret_cast<uintptr_t>(pointer), bytes, place};
#ifdef FUSEGEN_ASAN
  check_addressable(r, access);
#endif
  if (access.address - r.stack < r.stack_bytes) return;
  each_cell(r, access.address, bytes, [&](const Page& page, Cell& cell) { check_cell<kind>(r, page, cell, access); });
}

// ---- what orders accesses ----------------------------------------------------------------------------------------

// Frees the clocks that are not in use any more. Those that other clusters may acquire are kept.
inline void tidy(Worker& w) {
  Races& r = *w.races;
  if (r.keeps || r.clocks.allocated < r.enough) return;
  Arena old = r.clocks;
  r.clocks = Arena();
  for (unsigned i = 0; i < w.threads; ++i) {
    Agent& agent = r.agents[i];
    agent.clock = move(r.clocks, agent.clock, r.threads);
    for (Copy** copy = &agent.copies; *copy; copy = &(*copy)->next) {
      Copy* const moved = allocate_one<Copy>(r.clocks);
      *moved = **copy;
      *copy = moved;
    }
  }
  move(r.clocks, r.arrivals, r.threads);
  r.arrived = move(r.clocks, r.arrived, r.threads);
  for (auto& of_block : r.messages) {
    for (Messages& messages : of_block) {
      move(r.clocks, messages.sent, r.threads);
      messages.come = move(r.clocks, messages.come, r.threads);
    }
  }
  r.joined[0] = nullptr;
  r.start.moved = nullptr, r.nothing.moved = nullptr;
  release(old);
  r.enough = 2 * r.clocks.allocated + kEnough;
}

// Joins the running thread's clock, with all that it has done until now.
inline void release_clock(Races& r, ClockJoin& joining) {
  join(r.clocks, joining, *r.agent->clock, r.threads);
  own_times(r.clocks, joining, r.thread >> 10, r.threads)[r.thread & 1023] = r.now++;
}

inline const Clock* joined(Races& r, const Clock* a, const Clock* b) {
  if (r.joined[0] != a || r.joined[1] != b) {
    ClockJoin joining = {};
    join(r.clocks, joining, *a, r.threads);
    join(r.clocks, joining, *b, r.threads);
    r.joined[0] = a, r.joined[1] = b, r.join = close(r.clocks, joining);
  }
  return r.join;
}

// The threads of a block from `first` on that take part in a barrier.
template <class TakesPart>
inline void meet(Worker& w, const Fiber* first, unsigned count, const TakesPart& takes_part) {
  tidy(w);
  Races& r = *w.races;
  ClockJoin joining = {};
  for (unsigned i = 0; i < count; ++i) {
    if (takes_part(i)) join(r.clocks, joining, *agent_of(r, w, first[i]).clock, r.threads);
  }
  uint32_t* const times = own_times(r.clocks, joining, first->rank, r.threads);
  const unsigned offset = unsigned(first - w.fibers) - first->rank * r.threads;
  for (unsigned i = 0; i < count; ++i) {
    if (takes_part(i)) times[offset + i] = r.now;
  }
  ++r.now;
  const Clock* const clock = close(r.clocks, joining);
  for (unsigned i = 0; i < count; ++i) {
    if (takes_part(i)) agent_of(r, w, first[i]).clock = clock;
  }
}

inline void arrive(Worker& w) { release_clock(*w.races, w.races->arrivals); }
inline void complete_arrivals(Worker& w) { w.races->arrived = close(w.races->clocks, w.races->arrivals); }
inline void see_arrivals(Worker& w) {
  Races& r = *w.races;
  r.agent->clock = joined(r, r.agent->clock, r.arrived);
}

inline void send(Worker& w, unsigned rank, unsigned phase) {
  release_clock(*w.races, w.races->messages[rank][phase].sent);
}
inline void complete_messages(Worker& w, unsigned rank, unsigned phase) {
  Messages& messages = w.races->messages[rank][phase];
  messages.come = close(w.races->clocks, messages.sent);
}
inline void see_messages(Worker& w, unsigned rank, unsigned phase) {
  Races& r = *w.races;
  r.agent->clock = joined(r, r.agent->clock, r.messages[rank][phase].come);
}

inline uint32_t calling_place(const void* address) {
  return uint32_t(static_cast<const char*>(address) - __ehdr_start);
}

// A store that the runtime does for a kernel, which has called it from `from`.
inline void check_store(const void* address, size_t bytes, const void* from) {
  check_access<kWrite>(address, bytes, calling_place(from));
}

void copy_async(void* target, const void* source, size_t bytes) {
  Races& r = *worker->races;
  const uint32_t place = calling_place(__builtin_return_address(0));
  check_access<kRead>(source, bytes, place);
  check_access<kCopyInto>(target, bytes, place);
  Copy* const copy = allocate_one<Copy>(r.clocks);
  *copy = {r.agent->copies, reinterpret_cast<uintptr_t>(target), reinterpret_cast<uintptr_t>(source), bytes, r.now++, place};
  r.agent->copies = copy;
  memcpy(target, source, bytes);
}

// The copy has read its source at some time since it was issued, and has written its target by now.
void await_copies() {
  Races& r = *worker->races;
  for (const Copy* copy = r.agent->copies; copy; copy = copy->next) {
    each_cell(r, copy->source, copy->bytes, [&](const Page& page, const Cell& cell) {
      const Stamp& write = cell.write;
      const bool near = write.launch == r.launch && write.cluster == r.cluster;
      if (!concerns(r, page, write) || (near ? write.time <= copy->issued : lies_before(r, write))) return;
      report(r, page, {kCopyFrom, copy->source, copy->bytes, copy->place}, write, kWrite);
    });
    const Stamp under_way = stamp_of(r, copy->place);
    each_cell(r, copy->target, copy->bytes, [&](const Page&, Cell& cell) {
      if (cell.write.time == kUnderWay && cell.write.thread == r.thread) cell.write = under_way;
    });
  }
  r.agent->copies = nullptr;
}

void await_previous_kernel() {
  Races& r = *worker->races;
  if (r.agent->clock->awaited) return;
  Clock* const clock = allocate_one<Clock>(r.clocks);
  *clock = *r.agent->clock;
  clock->awaited = true;
  r.agent->clock = clock;
}

void fence() {
  Races& r = *worker->races;
  r.keeps = true;
  ClockJoin joining = {};
  join(r.clocks, joining, *r.agent->clock, r.threads);
  joining.sum.remote = both(r.clocks, joining.sum.remote, r.agent->acquired);
  r.agent->acquired = nullptr;
  r.agent->clock = close(r.clocks, joining);
  release_clock(r, joining);
  r.agent->released = close(r.clocks, joining);
}

void check_atomic(const void* pointer, size_t bytes) {
  check_access<kUpdate>(pointer, bytes, calling_place(__builtin_return_address(0)));
  Races& r = *worker->races;
  if (!r.keeps) return;
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  Released* at = r.released;
  while (at && at->address != address) at = at->next;
  if (!at) {
    at = allocate_one<Released>(r.clocks);
    *at = {address, nullptr, r.released};
    r.released = at;
  }
  r.agent->acquired = both(r.clocks, r.agent->acquired, at->all);
  if (!r.agent->released) return;
  RemoteClocks* const one = allocate_one<RemoteClocks>(r.clocks);
  one->clock = r.agent->released, one->first = at->all;
  at->all = one;
}

// A region of pages that nothing else lies in, for each variable.
void* shared_variable(const char* name, size_t bytes) {
  SharedRegion* region = shared_regions;
  while (region && region->name != name) region = region->next;
  if (!region) {
    const size_t stride = (bytes / kPageBytes + 1) * kPageBytes;  // what lies behind it is nobody's
    void* memory = nullptr;
    if (posix_memalign(&memory, kPageBytes, kPageBytes + stride * kClusterBlocks)) {
      fail(kResources, "no memory for %zu bytes of shared memory", bytes);
    }
    region = static_cast<SharedRegion*>(memory);
#ifdef FUSEGEN_ASAN
    __asan_poison_memory_region(region + 1, kPageBytes + stride * kClusterBlocks - sizeof *region);
#endif
    *region = {static_cast<unsigned char*>(memory) + kPageBytes, bytes, stride, shared_regions, name};
    shared_regions = region;
    for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
#ifdef FUSEGEN_ASAN
      __asan_unpoison_memory_region(region->data + rank * stride, bytes);
#endif
      memset(region->data + rank * stride, 0xFF, bytes);
    }
  }
  return region->data + current_rank() * region->stride;
}

}  // namespace fusegen_emulator

#include "fusegen_emulator_hooks.h"

#else

namespace fusegen_emulator {

enum { kSharedUnit = 128 };
inline bool begin_launch(Worker&) { return true; }
inline void end_launch(Worker&) {}
inline void begin_cluster(Worker&, uint64_t) {}
inline void run_as(Worker&, const Fiber&) {}
template <class TakesPart>
inline void meet(Worker&, const Fiber*, unsigned, const TakesPart&) {}
inline void arrive(Worker&) {}
inline void complete_arrivals(Worker&) {}
inline void see_arrivals(Worker&) {}
inline void send(Worker&, unsigned, unsigned) {}
inline void complete_messages(Worker&, unsigned, unsigned) {}
inline void see_messages(Worker&, unsigned, unsigned) {}
inline void check_store(const void*, size_t, const void*) {}

}  // namespace fusegen_emulator
#endif
