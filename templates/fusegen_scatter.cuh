// How a thread takes updates for places of a line that it owns. Behind fusegen.cuh, for scatter kernels alone.
#pragma once

namespace fg {

// What an update and what is there come to.
struct Added {
  template <typename T> static FG_DEVICE T of(T now, T update) { return plus(now, update); }
};
struct Multiplied {
  template <typename T> static FG_DEVICE T of(T now, T update) { return times(now, update); }
};
struct Largest {
  template <typename T> static FG_DEVICE T of(T now, T update) { return maximum(now, update); }
};
struct Smallest {
  template <typename T> static FG_DEVICE T of(T now, T update) { return minimum(now, update); }
};

// A place that no tensor has, from whichever end it is counted, and which is no mistake.
FG_DEVICE int64_t no_place() { return -(int64_t(1) << 62); }

// The same by a function.
template <typename Combined, typename T> FG_DEVICE T combine(T now, T update) { return Combined::of(now, update); }

// Takes N updates in their order; what has no place has -1. Shared memory answers after some thirty cycles, so sixteen updates
// are read at once, and four places before the first of them is written: an update for the same place as one before it goes on
// from there. Places, updates and the line itself are `Pitch` elements apart.
template <typename Combined, int N, int Pitch, typename T>
FG_DEVICE void take_updates(T* line, const int* places, const T* updates) {
  constexpr int Read = 16, Together = 4;
#pragma unroll 1
  for (int begin = 0; begin < N; begin += Read) {
    int place[Read];
    T update[Read];
#pragma unroll
    for (int i = 0; i < Read; ++i) place[i] = places[(begin + i) * Pitch], update[i] = updates[(begin + i) * Pitch];
#pragma unroll
    for (int first = 0; first < Read; first += Together) {
      T now[Together];
#pragma unroll
      for (int j = 0; j < Together; ++j) {
        if (place[first + j] >= 0) now[j] = line[place[first + j] * Pitch];
      }
#pragma unroll
      for (int j = 0; j < Together; ++j) {
#pragma unroll
        for (int before = 0; before < j; ++before) {
          if (place[first + before] == place[first + j]) now[j] = now[before];
        }
        if (place[first + j] >= 0) now[j] = Combined::of(now[j], update[first + j]);
      }
#pragma unroll
      for (int j = 0; j < Together; ++j) {
        if (place[first + j] >= 0) line[place[first + j] * Pitch] = now[j];
      }
    }
  }
}

}  // namespace fg
