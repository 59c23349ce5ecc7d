// Vector clocks: up to which time each thread has seen every other one. Part of fusegen_emulator_races.h.
//
// A cluster has a time, which moves on whenever a thread releases what it has done (a block is a cluster of one). An
// access to memory is stamped with that time. It happens before all that another thread does once that one's clock has
// the first thread at that time or later. A barrier joins the clocks of all that take part. They share the joined clock,
// so a clock never changes once a thread has it.
#pragma once

namespace fusegen_emulator {

enum { kMostInBlock = 1024 };
enum : uint32_t { kUnderWay = ~0u };  // the time of a copy that has yet to come: nobody has seen it

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

struct RemoteClocks;

struct Clock {
  mutable const Clock* moved;
  uint32_t cluster;
  bool awaited;            // the kernel before has ended
  const RemoteClocks* remote;  // of other clusters
  const Times* known[kClusterBlocks];
};

// Clocks of other clusters, acquired through atomics: one of them, and those acquired before.
struct RemoteClocks {
  const Clock* clock;  // or null: the union of the two others
  const RemoteClocks *first, *second;
  mutable uint32_t visit;
};

// Clocks that are being joined.
struct ClockJoin {
  const Clock* last;  // that was joined: threads that met before have one and the same
  Clock sum;
  Times* own[kClusterBlocks];  // that are not shared with a clock yet
};

inline const RemoteClocks* both(Arena& arena, const RemoteClocks* a, const RemoteClocks* b) {
  if (!a || a == b) return b;
  if (!b) return a;
  RemoteClocks* const sum = allocate_one<RemoteClocks>(arena);
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

inline uint32_t* own_times(Arena& arena, ClockJoin& joining, unsigned rank, unsigned threads) {
  if (!joining.own[rank]) {
    joining.own[rank] = copy_of(arena, joining.sum.known[rank], threads);
    joining.sum.known[rank] = joining.own[rank];
  }
  return joining.own[rank]->of;
}

inline void join(Arena& arena, ClockJoin& joining, const Clock& clock, unsigned threads) {
  if (joining.last == &clock) return;
  if (!joining.last) joining.sum.cluster = clock.cluster;
  joining.last = &clock;
  joining.sum.awaited |= clock.awaited;
  joining.sum.remote = both(arena, joining.sum.remote, clock.remote);
  for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
    const Times* const times = clock.known[rank];
    if (!joining.sum.known[rank]) joining.sum.known[rank] = times;
    if (joining.sum.known[rank] == times) continue;
    uint32_t* const sum = own_times(arena, joining, rank, threads);
    for (unsigned i = 0; i < threads; ++i) sum[i] = sum[i] < times->of[i] ? times->of[i] : sum[i];
  }
}

// The joined clock.
inline const Clock* close(Arena& arena, ClockJoin& joining) {
  Clock* const clock = allocate_one<Clock>(arena);
  *clock = joining.sum;
  joining = ClockJoin();
  return clock;
}

// Copies to another arena what is still in use: a block that loops over many rows joins clocks often. Copies share what
// the originals shared.
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

inline void move(Arena& arena, ClockJoin& joining, unsigned threads) {
  joining.last = nullptr;
  move(arena, joining.sum.known, threads);
  for (unsigned rank = 0; rank < kClusterBlocks; ++rank) {
    if (joining.own[rank]) joining.own[rank] = const_cast<Times*>(joining.sum.known[rank]);
  }
}

}  // namespace fusegen_emulator
