// Threads that share rows or columns: what they exchange, so that all of them get the result. Part of fusegen.cuh.
#pragma once

namespace fg {

// -- rows: Threads (threadIdx.x) share each of Rows rows (threadIdx.y), and all of them get the result ---------------

struct Add {
  template <int Lanes, typename T> static FG_DEVICE T lanes(T value) { return lanes_sum<Lanes>(value); }
  template <typename T> static FG_DEVICE T all(const Stored<T>* values, int count) {
    T total = values[0].get();
#pragma unroll
    for (int i = 1; i < count; ++i) total += values[i].get();
    return total;
  }
};
struct Merge {
  template <int Lanes, typename S> static FG_DEVICE S lanes(S state) { return lanes_merge<Lanes>(state); }
  template <typename S> static FG_DEVICE S all(const Stored<S>* states, int count) { return merged(states, count); }
};

// What the blocks of a cluster exchange partial results through. Each block writes its own into the memory of all others;
// the stores themselves announce their arrival, so that nobody waits for anybody's stores to global memory. Two buffers
// and two barriers take turns: whoever writes into one has everybody's word that it has been read.
template <int Cluster> struct Link {
  uint32_t round = 0;
#ifdef FUSEGEN_EMULATOR
  FG_DEVICE Link() { cluster_arrive(); }
  template <typename S>
  FG_DEVICE void send(Stored<S>* shared, int rank, const Stored<S>& value,
                      fusegen_emulator::Site site = fusegen_emulator::site("Link::send()")) {
    fusegen_send(site, shared, rank, &value, sizeof value, round);
  }
  FG_DEVICE void receive(int bytes, fusegen_emulator::Site site = fusegen_emulator::site("Link::receive()")) {
    fusegen_receive(site, bytes, round);
    ++round;
  }
#elif __CUDA_ARCH__ >= 900
  uint64_t* barriers;
  FG_DEVICE Link() {
    __shared__ uint64_t arrivals[2];
    barriers = arrivals;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&arrivals[0])) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(&arrivals[1])) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_arrive();
  }
  static FG_DEVICE uint32_t address(const void* shared) { return uint32_t(__cvta_generic_to_shared(shared)); }
  static FG_DEVICE uint32_t address_in(const void* shared, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(shared)), "r"(rank));
    return there;
  }
  // Thread `rank` sends `value` to the block of that rank.
  template <typename S> FG_DEVICE void send(Stored<S>* shared, int rank, const Stored<S>& value) {
    const uint32_t there = address_in(shared, rank), barrier = address_in(&barriers[round & 1], rank);
#pragma unroll
    for (int i = 0; i < Stored<S>::words; ++i) {
      asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there + 4 * i),
                   "r"(value.word[i]), "r"(barrier)
                   : "memory");
    }
  }
  // Until `bytes` have come from all blocks together.
  FG_DEVICE void receive(int bytes) {
    const uint32_t barrier = address(&barriers[round & 1]), phase = (round >> 1) & 1;
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                   : "memory");
    }
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{.reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
          : "=r"(done)
          : "r"(barrier), "r"(phase)
          : "memory");
    }
    ++round;
  }
#else
  FG_DEVICE Link() { cluster_arrive(); }
  template <typename S> FG_DEVICE void send(Stored<S>* shared, int rank, const Stored<S>& value) {
    store_remote(shared, rank, value);
  }
  FG_DEVICE void receive(int) {
    cluster_arrive();
    cluster_wait();
    ++round;
  }
#endif
  // All blocks have started; before the first exchange.
  FG_DEVICE void ready() { cluster_wait(); }
};

// All threads of a row of the block (threadIdx.y), which has whole warps where it has more than one. Rows have nothing to
// do with each other, so each of several has a barrier of its own: none waits for the slowest. Their numbers are literals,
// or a block would have all 16 that there are, and a multiprocessor fewer blocks.
template <int Threads, int Rows, int Row = 0> FG_DEVICE void row_barrier() {
  static_assert(Rows < 16, "a block has 16 barriers, and the first is __syncthreads'");
  if constexpr (Rows == 1) {
    __syncthreads();
  } else {
#ifdef FUSEGEN_EMULATOR
    fusegen_sync_row();
#else
    if (Row == Rows - 1 || threadIdx.y == Row) {
      asm volatile("bar.sync %0, %1;" ::"n"(Row + 1), "n"(Threads) : "memory");
    } else {
      row_barrier<Threads, Rows, Row + (Row < Rows - 1)>();
    }
#endif
  }
}

// How: Add or Merge. Site: one number for each call in a kernel, so that a second call need not wait until all have read
// what the first exchanged. All threads of the block get the result.
template <typename How, int Threads, int Rows, int Site, typename S, int N> FG_DEVICE void combine_block(S (&values)[N]) {
  constexpr int lanes = Threads < 32 ? Threads : 32, warps = Threads / 32;
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::template lanes<lanes>(values[i]);
  if constexpr (warps > 1) {
    FUSEGEN_SHARED(Stored<S>, of_warps, [N][Rows][warps]);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
      for (int i = 0; i < N; ++i) of_warps[i][threadIdx.y][threadIdx.x / 32].put(values[i]);
    }
    row_barrier<Threads, Rows>();
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = How::all(of_warps[i][threadIdx.y], warps);
  }
}
template <typename How, int Threads, int Site, int Cluster, typename S, int N>
FG_DEVICE void combine_cluster(Link<Cluster>& link, S (&values)[N]) {
  FUSEGEN_SHARED(Stored<S>, of_blocks, [2][N][Cluster]);
  // What is sent says that the block has read what came before: larger blocks have just met in combine_block.
  if (Threads <= 32) __syncwarp();
  const int turn = link.round & 1;
  if (threadIdx.x < Cluster) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      Stored<S> own;
      own.put(values[i]);
      link.send(&of_blocks[turn][i][cluster_rank()], int(threadIdx.x), own);
    }
  }
  link.receive(int(sizeof(of_blocks[0])));
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::all(of_blocks[turn][i], Cluster);
}

#define FG_IN_PLACE(combine)     \
  S values[] = {first, more...}; \
  combine;                       \
  int i = 0;                     \
  first = values[i++];           \
  ((more = values[i++]), ...);

template <int Threads, int Rows, int Site, typename S, typename... More> FG_DEVICE void row_sum(S& first, More&... more) {
  FG_IN_PLACE((combine_block<Add, Threads, Rows, Site>(values)))
}
template <int Threads, int Rows, int Site, typename S, typename... More> FG_DEVICE void row_merge(S& first, More&... more) {
  FG_IN_PLACE((combine_block<Merge, Threads, Rows, Site>(values)))
}
template <int Threads, int Site, int Cluster, typename S, typename... More>
FG_DEVICE void cluster_sum(Link<Cluster>& link, S& first, More&... more) {
  FG_IN_PLACE((combine_block<Add, Threads, 1, Site>(values), combine_cluster<Add, Threads, Site>(link, values)))
}
template <int Threads, int Site, int Cluster, typename S, typename... More>
FG_DEVICE void cluster_merge(Link<Cluster>& link, S& first, More&... more) {
  FG_IN_PLACE((combine_block<Merge, Threads, 1, Site>(values), combine_cluster<Merge, Threads, Site>(link, values)))
}

// Columns: Rows of threads (threadIdx.y) share each of Across columns (threadIdx.x), and all of them get the result.
struct Highest {
  template <typename T> static FG_DEVICE T all(const Stored<T>* values, int count) {
    T top = values[0].get();
#pragma unroll
    for (int i = 1; i < count; ++i) top = maximum(top, values[i].get());
    return top;
  }
};
// Of many rows a few threads put groups together first, so that nobody reads what all of them have.
template <typename How, int Rows, int Across, int Site, typename S, int N> FG_DEVICE void combine_column(S (&values)[N]) {
  constexpr int groups = Rows > 8 ? 4 : 1, each = Rows / groups;
  FUSEGEN_SHARED(Stored<S>, of_rows, [N][Across][Rows + 1]);  // neighbouring columns begin in neighbouring banks
#pragma unroll
  for (int i = 0; i < N; ++i) of_rows[i][threadIdx.x][threadIdx.y].put(values[i]);
  __syncthreads();
  if (groups == 1) {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = How::all(of_rows[i][threadIdx.x], Rows);
    return;
  }
  FUSEGEN_SHARED(Stored<S>, of_groups, [N][Across][groups + 1]);
#pragma unroll 1
  for (int part = threadIdx.y; part < N * groups; part += Rows) {
    const int i = part / groups, group = part % groups;
    of_groups[i][threadIdx.x][group].put(How::all(&of_rows[i][threadIdx.x][group * each], each));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = How::all(of_groups[i][threadIdx.x], groups);
}
#define FG_COLUMNS(name, How)                                                                                            \
  template <int Rows, int Across, int Site, typename S, typename... More> FG_DEVICE void name(S& first, More&... more) { \
    FG_IN_PLACE((combine_column<How, Rows, Across, Site>(values)))                                                       \
  }
FG_COLUMNS(columns_sum, Add)
FG_COLUMNS(columns_maximum, Highest)
FG_COLUMNS(columns_merge, Merge)
#undef FG_COLUMNS
#undef FG_IN_PLACE

// Numbers (or vectors) of the rows of a block added up, in row 0. Rows that lie in one warp are added up within it, so
// that few are left for a thread to read one after the other; and as many numbers as then fit where rows would be share
// an exchange.
template <int Threads, int Rows, typename T, int N> FG_DEVICE void rows_sum(T (&values)[N]) {
  constexpr int near = Threads >= 32 ? 1 : 32 / Threads < Rows ? 32 / Threads
                                                               : Rows,
                far = Rows / near;
  constexpr int together = near < N ? near : N;
  static_assert(Rows % near == 0, "warps hold whole rows");
  FUSEGEN_SHARED(T, of_rows, [together][far][Threads]);
#pragma unroll
  for (int i = 0; i < N; ++i) {
#pragma unroll
    for (int distance = Threads * near / 2; distance >= Threads; distance /= 2) values[i] += shuffle_xor(values[i], distance);
  }
  if (far == 1) return;
#pragma unroll
  for (int first = 0; first < N; first += together) {
    __syncthreads();  // an earlier sum may still be reading of_rows
    if (threadIdx.y % near == 0) {
#pragma unroll
      for (int i = 0; i < together && first + i < N; ++i) of_rows[i][threadIdx.y / near][threadIdx.x] = values[first + i];
    }
    __syncthreads();
    if (threadIdx.y == 0) {
#pragma unroll
      for (int i = 0; i < together && first + i < N; ++i) {
#pragma unroll
        for (int row = 1; row < far; ++row) values[first + i] += of_rows[i][row][threadIdx.x];
      }
    }
  }
}
template <int Threads, int Rows, typename T, int V, int N> FG_DEVICE void rows_sum(Vec<T, V> (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) rows_sum<Threads, Rows>(values[i].lane);
}

}  // namespace fg
