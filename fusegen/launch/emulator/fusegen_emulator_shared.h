// The emulator's shared memory: a copy of every variable for each block that a worker runs at once.
// Part of fusegen_emulator.h.
#pragma once

namespace fusegen_emulator {

struct SharedRegion {    // every variable of this OS thread, so that a new block can poison them all
  unsigned char* data;   // of the cluster's first block
  size_t bytes, stride;  // to the same variable of the next block
  SharedRegion* next;
  const char* name;
};
extern __thread SharedRegion* shared_regions;

template <class T>
struct SharedVariable {
  struct Copy {
    alignas(128) unsigned char before[128];
    alignas(128) unsigned char value[sizeof(T)];
    unsigned char after[128];
  };
  Copy copies[kClusterBlocks];
  SharedRegion region;
  SharedVariable() : region{copies[0].value, sizeof copies[0].value, sizeof(Copy), shared_regions, ""} {
    shared_regions = &region;
    for (Copy& copy : copies) {
      memset(copy.value, 0xFF, sizeof copy.value);
#ifdef FUSEGEN_ASAN
      __asan_poison_memory_region(copy.before, sizeof copy.before);
      __asan_poison_memory_region(copy.after, sizeof copy.after);
#endif
    }
  }
#ifdef FUSEGEN_ASAN
  ~SharedVariable() {  // the memory goes back to the C library with its thread
    __asan_unpoison_memory_region(this, sizeof *this);
  }
#endif
  T& get() { return reinterpret_cast<T&>(copies[current_rank()].value); }
};

}  // namespace fusegen_emulator

// FUSEGEN_SHARED(float, tile, [32][33]);  in CUDA: __shared__ float tile[32][33]; inside functions only. A scalar has
// no extents: FUSEGEN_SHARED(float, total, ); No variable of a kernel begins with fusegen_ (generate/names).
#ifdef FUSEGEN_EMULATOR_RACES
// Where it lies is the runtime's business: guards and pointers of its own would be memory that threads share.
#define FUSEGEN_SHARED(type, name, extents)              \
  typedef type fusegen_type_##name extents;              \
  static constexpr char fusegen_shared_##name[] = #name; \
  fusegen_type_##name& name =                            \
      *static_cast<fusegen_type_##name*>(fusegen_emulator::shared_variable(fusegen_shared_##name, sizeof(fusegen_type_##name)))
#else
#define FUSEGEN_SHARED(type, name, extents)                                                        \
  typedef type fusegen_type_##name extents;                                                        \
  static thread_local fusegen_emulator::SharedVariable<fusegen_type_##name> fusegen_shared_##name; \
  fusegen_type_##name& name = fusegen_shared_##name.get()
#endif

inline FUSEGEN_UNCHECKED unsigned char* fusegen_dynamic_shared() {
  fusegen_emulator::Worker& w = *fusegen_emulator::worker;
  unsigned char* memory = w.blocks[fusegen_emulator::current_rank()].dynamic_shared;
  if (!memory)
    fusegen_emulator::fail(fusegen_emulator::kAssertion, "dynamic shared memory: launched with 0 bytes of it");
  return memory;
}
