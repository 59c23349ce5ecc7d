// Shadow memory: for all bytes that kernels touch, who accessed them last. Part of fusegen_emulator_races.h.
//
// A page covers 1 KB in cells as fine as the accesses that it has seen: 16 bytes, where vectors are all that there is,
// down to one. A cell has the last write, and the reads since then: one, if the others lie before it, or all of them.
// Shadow memory outlives a launch, because the next kernel may start before this one has ended; a stamp says of which launch
// it is, so that nothing needs to be cleared.
#pragma once

namespace fusegen_emulator {

enum { kPageBits = 10, kPageBytes = 1 << kPageBits, kCoarsest = 4, kRecent = 4096, kBuckets = 1 << 14 };
enum : uint16_t { kNoLaunch = 0, kLastLaunch = 0xFFFE };
enum : size_t { kMostKept = 256 << 20 };  // bytes of cells that are left to the next launch

struct Readers;

struct Stamp {  // an access
  union {
    struct {
      uint32_t time, place;  // the place is that of an instruction in the kernel's library
    };
    Readers* readers;  // of several
  };
  uint32_t cluster;
  uint16_t launch;
  uint16_t thread : 14;  // the block's rank in the cluster, and ten bits for the thread in it
  uint16_t several : 1, atomic : 1;
};
static_assert(sizeof(Stamp) == 16, "shadow memory is eight times as large as what it is for, or more");

struct Cell {
  Stamp write, read;  // what is atomic stands with the reads: it goes with its like
};

// Reads that do not lie one before the other. Of threads of one cluster, the last of each. If they are from several
// clusters, or nothing orders threads, two are enough: whoever writes is not both of them.
struct Readers {
  Readers* next;
  bool two;
  struct Last {
    uint32_t time, place;
  };
  Last* last() { return reinterpret_cast<Last*>(this + 1); }
  Stamp* stamps() { return reinterpret_cast<Stamp*>(this + 1); }
};

struct Page {
  uintptr_t number;
  Page* next;
  Cell* cells;
  uint16_t launch, capacity;
  uint8_t shift;  // a cell covers 1 << shift bytes
  bool shared;
  unsigned count() const { return unsigned(kPageBytes) >> shift; }
};

struct Shadow {
  Page* buckets[kBuckets];
  size_t bytes;
  uint16_t launch;
  pthread_t owner;
  char kernel[256];  // of the last launch
};

inline Page*& bucket(Shadow& shadow, uintptr_t number) {
  return shadow.buckets[(number * 0x9E3779B97F4A7C15u >> 32) % kBuckets];
}

// Frees the pages that the given launch has not used.
inline void free_pages(Shadow& shadow, unsigned but_of) {
  for (Page*& head : shadow.buckets) {
    for (Page** place = &head; *place;) {
      Page* const page = *place;
      if (page->launch == but_of) {
        place = &page->next;
        continue;
      }
      *place = page->next;
      shadow.bytes -= page->capacity * sizeof(Cell);
      free(page->cells);
      free(page);
    }
  }
}

inline void grow(Shadow& shadow, Page& page, unsigned shift) {
  const unsigned count = unsigned(kPageBytes) >> shift;
  if (count > page.capacity) {
    Cell* const cells = static_cast<Cell*>(realloc(page.cells, count * sizeof(Cell)));
    if (!cells) fail(kResources, "no memory for the shadow of a page");
    memset(static_cast<void*>(cells + page.capacity), 0, (count - page.capacity) * sizeof(Cell));
    shadow.bytes += (count - page.capacity) * sizeof(Cell);
    page.cells = cells, page.capacity = uint16_t(count);
  }
  page.shift = uint8_t(shift);
}

inline Page& find_page(Shadow& shadow, uintptr_t number) {
  Page*& head = bucket(shadow, number);
  for (Page* page = head; page; page = page->next) {
    if (page->number == number) return *page;
  }
  Page* const page = static_cast<Page*>(calloc(1, sizeof(Page)));
  if (!page) fail(kResources, "no memory for the shadow of a page");
  page->number = number, page->next = head, page->shift = kCoarsest;
  head = page;
  return *page;
}

// The shadow that this OS thread's last launch left, or another one.
inline Shadow* take_shadow(void** slots, unsigned count) {
  for (unsigned i = 0; i < 2 * count; ++i) {
    void*& slot = slots[i % count];
    Shadow* const shadow = static_cast<Shadow*>(__atomic_exchange_n(&slot, nullptr, __ATOMIC_ACQ_REL));
    if (!shadow) continue;
    if (i >= count || pthread_equal(shadow->owner, pthread_self())) return shadow;
    void* none = nullptr;  // else another one has come in between
    if (!__atomic_compare_exchange_n(&slot, &none, shadow, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return shadow;
  }
  return static_cast<Shadow*>(calloc(1, sizeof(Shadow)));
}

inline void give_back(Shadow* shadow, void** slots, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    void* none = nullptr;
    if (__atomic_compare_exchange_n(&slots[i], &none, shadow, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  }
  free_pages(*shadow, kNoLaunch);
  free(shadow);
}

}  // namespace fusegen_emulator
