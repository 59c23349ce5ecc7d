// What the compiler calls before each access of a kernel in which races are looked for: ThreadSanitizer's functions, or
// AddressSanitizer's where that looks on as well. Part of fusegen_emulator_races.h.
#pragma once

namespace fusegen_emulator {

void announce_read(const void* address, size_t bytes) {
  check_access<kRead>(address, bytes, calling_place(__builtin_return_address(0)));
}
void announce_write(const void* address, size_t bytes) {
  check_access<kWrite>(address, bytes, calling_place(__builtin_return_address(0)));
}

// An access of a type with that alignment.
template <Kind kind>
inline void check_aligned(const void* pointer, size_t bytes, size_t alignment, const void* from) {
  const Access access = {kind, reinterpret_cast<uintptr_t>(pointer), bytes, calling_place(from)};
  if (worker && access.address % alignment) report_misaligned(access, alignment);
  check_access<kind>(pointer, bytes, access.place);
}

}  // namespace fusegen_emulator

#define FUSEGEN_HOOK(name, kind, bytes, alignment)                                                             \
  extern "C" __attribute__((visibility("hidden"))) void name(void* address) {                                  \
    fusegen_emulator::check_aligned<fusegen_emulator::kind>(address, bytes, alignment, __builtin_return_address(0)); \
  }
#define FUSEGEN_HOOK_OF_RANGE(name, kind)                                                                      \
  extern "C" __attribute__((visibility("hidden"))) void name(void* address, size_t bytes) {                    \
    fusegen_emulator::check_aligned<fusegen_emulator::kind>(address, bytes, 1, __builtin_return_address(0));   \
  }
#ifdef FUSEGEN_ASAN
#define FUSEGEN_HOOKS(bytes, alignment)                    \
  FUSEGEN_HOOK(__asan_load##bytes, kRead, bytes, alignment) \
  FUSEGEN_HOOK(__asan_store##bytes, kWrite, bytes, alignment)
FUSEGEN_HOOK_OF_RANGE(__asan_loadN, kRead)
FUSEGEN_HOOK_OF_RANGE(__asan_storeN, kWrite)
#else
#define FUSEGEN_HOOKS(bytes, alignment)                     \
  FUSEGEN_HOOK(__tsan_read##bytes, kRead, bytes, alignment)  \
  FUSEGEN_HOOK(__tsan_write##bytes, kWrite, bytes, alignment) \
  FUSEGEN_HOOK(__tsan_unaligned_read##bytes, kRead, bytes, 1) \
  FUSEGEN_HOOK(__tsan_unaligned_write##bytes, kWrite, bytes, 1)
FUSEGEN_HOOK_OF_RANGE(__tsan_read_range, kRead)
FUSEGEN_HOOK_OF_RANGE(__tsan_write_range, kWrite)
#endif
FUSEGEN_HOOKS(1, 1)
FUSEGEN_HOOKS(2, 2)
FUSEGEN_HOOKS(4, 4)
FUSEGEN_HOOKS(8, 8)
FUSEGEN_HOOKS(16, 8)  // of types that are aligned to 8, too
#undef FUSEGEN_HOOKS
#undef FUSEGEN_HOOK_OF_RANGE
#undef FUSEGEN_HOOK
// Clang's, for copies of structures.
#ifdef FUSEGEN_ASAN
#define FUSEGEN_NAME(function) __asan_##function
#else
#define FUSEGEN_NAME(function) __tsan_##function
#endif
#define FUSEGEN_HOOK(function)                                                                                     \
  extern "C" __attribute__((visibility("hidden"))) void* FUSEGEN_NAME(function)(void* target, const void* source,  \
                                                                                size_t bytes) {                    \
    const uint32_t place = fusegen_emulator::calling_place(__builtin_return_address(0));                           \
    fusegen_emulator::check_access<fusegen_emulator::kRead>(source, bytes, place);                                 \
    fusegen_emulator::check_access<fusegen_emulator::kWrite>(target, bytes, place);                                \
    return function(target, source, bytes);                                                                        \
  }
FUSEGEN_HOOK(memcpy)
FUSEGEN_HOOK(memmove)
#undef FUSEGEN_HOOK
extern "C" __attribute__((visibility("hidden"))) void* FUSEGEN_NAME(memset)(void* target, int value, size_t bytes) {
  const uint32_t place = fusegen_emulator::calling_place(__builtin_return_address(0));
  fusegen_emulator::check_access<fusegen_emulator::kWrite>(target, bytes, place);
  return memset(target, value, bytes);
}
#undef FUSEGEN_NAME
#ifndef FUSEGEN_ASAN
extern "C" __attribute__((visibility("hidden"))) void __tsan_init() {}
extern "C" __attribute__((visibility("hidden"))) void __tsan_func_entry(void*) {}
extern "C" __attribute__((visibility("hidden"))) void __tsan_func_exit(void*) {}
#endif
