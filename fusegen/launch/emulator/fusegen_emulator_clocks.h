// What each thread knows of the others: vector clocks. Part of fusegen_emulator_races.h.
//
// A cluster (or a block, which is a cluster of one) has a clock that moves on whenever a thread hands on what it has done.
// A thread's access to memory is marked with the time, and lies before all that another thread does from when it knows
// the first one up to that time. At a barrier all that take part learn of each other what each of them knows. The threads
// that have met know the same, and share the arrays that say so; these never change once a thread has them.
#pragma once

namespace fusegen_emulator {

enum { kMostInBlock = 1024 };
enum : uint32_t { kUnderWay = ~0u };  // the time of a copy that has yet to come: nobody knows of it

// Memory that is released all at once.
struct Arena {
  struct Chunk {
    Chunk* next;
    size_t bytes;
  };
  Chunk *first, *current;
  size_t used, allocated;  // of the current chunk; in all
};

inline void* allocate(Arena& arena, size_t bytes) {
  enum : size_t { kChunk = 64 << 10 };
  bytes = (bytes + 15) & ~size_t(15);
  while (!arena.current || arena.used + bytes > arena.current->bytes) {
    Arena::Chunk*& next = arena.current ? arena.current->next : arena.first;
    if (!next) {
      const size_t wanted = bytes > kChunk ? bytes : size_t(kChunk);
      next = static_cast<Arena::Chunk*>(malloc(sizeof(Arena::Chunk) + wanted));
      if (!next) fail(kResources, "no memory to remember %zu bytes of accesses", wanted);
      next->next = nullptr, next->bytes = wanted;
    }
    arena.current = next, arena.used = 0;
  }
  void* const memory = reinterpret_cast<char*>(arena.current + 1) + arena.used;
  arena.used += bytes, arena.allocated += bytes;
  return memory;
}

template <class T>
T* allocate_one(Arena& arena) {
  T* const memory = static_cast<T*>(allocate(arena, sizeof(T)));
  *memory = T();
  return memory;
}

inline void reset(Arena& arena) { arena.current = nullptr, arena.allocated = 0; }

inline void release(Arena& arena) {
  while (Arena::Chunk* const chunk = arena.first) {
    arena.first = chunk->next;
    free(chunk);
  }
}

// The time up to which each thread of a block is known.
struct Times {
  const Times* moved;
  uint32_t of[1];  // of each of the block's threads
};

struct Foreign;

struct Clock {
  mutable const Clock* moved;
  uint32_t cluster;
  bool awaited;            // the kernel before has ended
  const Foreign* foreign;  // what came from other clusters
  const Times* known[kClusterBlocks];
};

// What threads of several clusters have handed on through atomics: a clock, and what came before it.
struct Foreign {
  const Clock* clock;  // or null: only puts two others together
  const Foreign *first, *second;
  mutable uint32_t visit;
};

// Threads that tell each other what they know.
struct Meeting {
  const Clock* last;  // that took part: most of them are one
  Clock sum;
  Times* own[kClusterBlocks];  // that are not shared with a clock yet
};

inline const Foreign* both(Arena& arena, const Foreign* a, const Foreign* b) {
  if (!a || a == b) return b;
  if (!b) return a;
  Foreign* const sum = allocate_one<Foreign>(arena);
  sum->first = a, sum->second = b;
  return sum;
}

inline Times* copy_of(Arena& arena, const Times* times, unsigned threads) {
  const size_t bytes = sizeof(Times) + threads * sizeof(uint32_t);
  Times* const copy = static_cast<Times*>(allocate(arena, bytes));
  memcpy(copy, times, bytes);
  copy->moved = nullptr;
  return copy;
}

inline uint32_t* own_times(Arena& arena, Meeting& meeting, unsigned rank, unsigned threads) {
  if (!meeting.own[rank]) {
    meeting.own[rank] = copy_of(arena, meeting.sum.known[rank], threads);
    meeting.sum.known[rank] = meeting.own[rank];
  }
  return meeting.own[rank]->of;
}

inline void join(Arena& arena, Meeting& meeting, const Clock& clock, unsigned threads) {
  if (meeting.last == &clock) return;
  if (!meeting.last) meeting.sum.cluster = clock.cluster;
  meeting.last = &clock;
  meeting.sum.awaited |= clock.awaited;
  meeting.sum.foreign = both(arena, meeting.sum.foreign, clock.foreign);
  for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
    const Times* const times = clock.known[rank];
    if (!meeting.sum.known[rank]) meeting.sum.known[rank] = times;
    if (meeting.sum.known[rank] == times) continue;
    uint32_t* const sum = own_times(arena, meeting, rank, threads);
    for (unsigned i = 0; i < threads; ++i) sum[i] = sum[i] < times->of[i] ? times->of[i] : sum[i];
  }
}

// The clock that those who met go on with.
inline const Clock* close(Arena& arena, Meeting& meeting) {
  Clock* const clock = allocate_one<Clock>(arena);
  *clock = meeting.sum;
  meeting = Meeting();
  return clock;
}

// What is still of use goes to another arena: a block that sweeps over many rows meets often. Clocks that knew of each
// other share what they shared before.
inline const Times* move(Arena& arena, const Times* times, unsigned threads) {
  if (!times->moved) const_cast<Times*>(times)->moved = copy_of(arena, times, threads);
  return times->moved;
}

inline void move(Arena& arena, const Times* (&known)[kClusterBlocks], unsigned threads) {
  for (const Times*& times : known) times = times ? move(arena, times, threads) : nullptr;
}

inline const Clock* move(Arena& arena, const Clock* clock, unsigned threads) {
  if (!clock) return nullptr;
  if (!clock->moved) {
    Clock* const copy = allocate_one<Clock>(arena);
    *copy = *clock;
    move(arena, copy->known, threads);
    clock->moved = copy;
  }
  return clock->moved;
}

inline void move(Arena& arena, Meeting& meeting, unsigned threads) {
  meeting.last = nullptr;
  move(arena, meeting.sum.known, threads);
  for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
    if (meeting.own[rank]) meeting.own[rank] = const_cast<Times*>(meeting.sum.known[rank]);
  }
}

}  // namespace fusegen_emulator
