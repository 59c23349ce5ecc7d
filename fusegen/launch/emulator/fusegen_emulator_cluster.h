// The emulator's clusters: the barrier of all threads of a cluster, and stores into another block's shared memory.
// Part of fusegen_emulator_runtime.cpp.
#pragma once

namespace fusegen_emulator {

struct Passage {  // a thread or a warp at one half of a cluster barrier; barriers are numbered from 1
  Site site;
  unsigned number;
};

// Where the messages of every second round come in. As an mbarrier does, it counts the bytes that have come and those
// that the block expects, in any order.
struct Mailbox {
  int64_t missing;
  bool expected;
  uint32_t rounds;  // that are complete
  Site sent;        // the last one
};

// Made by a kernel's first cluster barrier. Behind it lie the threads' arrivals; a site there says "has yet to wait".
struct ClusterBarrier {
  unsigned arrived, completed;  // threads at the current barrier; barriers before it
  struct Warp {
    Passage arrival, wait;
  } warps[kClusterBlocks][32];
  Passage stored[kClusterBlocks];  // the last remote store into each block, and the barrier that makes it complete
  Mailbox mailboxes[kClusterBlocks][2];
  Passage& arrival(const Worker& w, const Fiber& fiber) {
    return reinterpret_cast<Passage*>(this + 1)[&fiber - w.fibers];
  }
};

inline size_t cluster_barrier_bytes(const Worker& w) { return sizeof(ClusterBarrier) + w.threads * sizeof(Passage); }

inline ClusterBarrier& cluster_barrier(Worker& w) {
  if (!w.cluster) w.cluster = static_cast<ClusterBarrier*>(calloc(1, cluster_barrier_bytes(w)));
  if (!w.cluster) fail(kResources, "no memory for the cluster barrier of %u threads", w.threads);
  return *w.cluster;
}

inline void start_cluster(Worker& w) { memset(static_cast<void*>(w.cluster), 0, cluster_barrier_bytes(w)); }

// A fiber's stack and the page that guards it are two mappings, of which Linux gives a process 65530.
inline uint64_t workers_for_clusters(uint64_t wanted, const dim3& block) {
  const uint64_t most = 16384 / (uint64_t(block.x) * block.y * block.z * kClusterBlocks);
  return wanted < most ? wanted : most;
}

// All threads that still live have arrived: those that wait go on.
inline void release_cluster(Worker& w, ClusterBarrier& barrier) {
  if (!barrier.arrived || barrier.arrived != w.live) return;
  barrier.arrived = 0;
  ++barrier.completed;
  complete_arrivals(w);
  for (unsigned i = 0; i < w.threads; ++i) {
    if (w.fibers[i].state == kAtCluster) w.fibers[i].state = kReady;
  }
}

// The instructions are .aligned: the lanes of a warp execute the same one.
inline void check_aligned(Passage& of_warp, const Site& site, unsigned number) {
  if (of_warp.number == number && of_warp.site.line != site.line) {
    fail(kClusterMisuse, "lanes of one warp meet in different cluster barriers: %s at %s:%d and at %s:%d", site.what,
         of_warp.site.file, of_warp.site.line, site.file, site.line);
  }
  of_warp = {site, number};
}

void arrive_at_cluster(const Site& site) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  ClusterBarrier& barrier = cluster_barrier(w);
  Fiber& self = *w.current;
  Passage& arrival = barrier.arrival(w, self);
  if (arrival.site.what) {
    fail(kClusterMisuse, "%s at %s:%d: thread (%u, %u, %u) has not waited since %s at %s:%d", site.what, site.file,
         site.line, self.index.x, self.index.y, self.index.z, arrival.site.what, arrival.site.file, arrival.site.line);
  }
  arrival = {site, barrier.completed + 1};
  const unsigned warp = unsigned(&self - block_of(w, self).fibers) / 32;
  check_aligned(barrier.warps[self.rank][warp].arrival, site, arrival.number);
  ++barrier.arrived;
  arrive(w);
  release_cluster(w, barrier);
  if (w.order && next_random(w.random) & 1) suspend();  // some run on, some are overtaken
}

void wait_for_cluster(const Site& site) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  ClusterBarrier& barrier = cluster_barrier(w);
  Fiber& self = *w.current;
  Passage& arrival = barrier.arrival(w, self);
  if (!arrival.site.what) {
    fail(kClusterMisuse, "%s at %s:%d: thread (%u, %u, %u) has not called cluster_arrive() before", site.what,
         site.file, site.line, self.index.x, self.index.y, self.index.z);
  }
  const unsigned warp = unsigned(&self - block_of(w, self).fibers) / 32;
  check_aligned(barrier.warps[self.rank][warp].wait, site, arrival.number);
  self.site = site;
  if (barrier.completed < arrival.number) self.state = kAtCluster;
  if (self.state != kReady || w.order) suspend();
  see_arrivals(w);
  arrival.site.what = nullptr;
}

inline const Mailbox* unread(const ClusterBarrier& barrier, unsigned rank) {
  for (const Mailbox& mailbox : barrier.mailboxes[rank]) {
    if (mailbox.missing && mailbox.sent.what) return &mailbox;
  }
  return nullptr;
}

// A thread that exits counts as arrived. It must have waited, and the last of its block must not leave while a remote
// store into the block may be on its way: only a cluster barrier after the store says that it has come.
inline void leave_cluster(Worker& w, Block& block, const Fiber& self) {
  ClusterBarrier& barrier = *w.cluster;
  const Site& arrival = barrier.arrival(w, self).site;
  const Passage& stored = barrier.stored[self.rank];
  if (arrival.what) {
    record(*w.launch, kClusterMisuse, "thread (%u, %u, %u) returns and has not waited since %s at %s:%d", self.index.x,
           self.index.y, self.index.z, arrival.what, arrival.file, arrival.line);
  } else if (!block.live && barrier.completed < stored.number) {
    record(*w.launch, kClusterMisuse, "it returns while %s at %s:%d into it may be on its way", stored.site.what,
           stored.site.file, stored.site.line);
  } else if (const Mailbox* mailbox = block.live ? nullptr : unread(barrier, self.rank)) {
    record(*w.launch, kClusterMisuse, "it returns while messages, the last of %s at %s:%d, may be on their way",
           mailbox->sent.what, mailbox->sent.file, mailbox->sent.line);
  }
  release_cluster(w, barrier);
}

// The number of the barrier that the running thread is at, or has been.
inline unsigned check_target(Worker& w, const Site& site, unsigned rank) {
  ClusterBarrier& barrier = cluster_barrier(w);
  const Passage& arrival = barrier.arrival(w, *w.current);
  if (arrival.number < (arrival.site.what ? 2 : 1)) {
    fail(kClusterMisuse, "%s at %s:%d before a first cluster barrier: block %u of the cluster may not have started",
         site.what, site.file, site.line, rank);
  }
  if (!w.blocks[rank].live) {
    fail(kClusterMisuse, "%s at %s:%d: block %u of the cluster has returned", site.what, site.file, site.line, rank);
  }
  return arrival.number;
}

// Where block `rank` of the cluster has what is at `address` in the running block; null if that is not all within one
// variable.
inline void* shared_of_block(void* address, size_t bytes, unsigned rank) {
  Worker& w = *worker;
  const unsigned own = current_rank();
  unsigned char* const wanted = static_cast<unsigned char*>(address);
  for (SharedRegion* region = shared_regions; region; region = region->next) {
    unsigned char* const begin = region->data + own * region->stride;
    if (begin <= wanted && wanted + bytes <= begin + region->bytes) {
      return region->data + rank * region->stride + (wanted - begin);
    }
  }
  unsigned char* const begin = w.blocks[own].dynamic_shared;
  if (!begin || wanted < begin || wanted + bytes > begin + w.launch->shared_bytes) return nullptr;
  return w.blocks[rank].dynamic_shared + (wanted - begin);
}

inline void* address_in_block(const Site& site, void* shared, int rank, size_t bytes) {
  if (rank < 0 || rank >= int(kClusterBlocks)) {
    fail(kClusterMisuse, "%s at %s:%d: to block %d of a cluster of %u", site.what, site.file, site.line, rank,
         kClusterBlocks);
  }
  void* const address = shared_of_block(shared, bytes, unsigned(rank));
  if (!address) {
    fail(kClusterMisuse, "%s at %s:%d: not the address of %zu bytes in this block's shared memory", site.what,
         site.file, site.line, bytes);
  }
  return address;
}

void store_remote(const Site& site, void* shared, int rank, const void* value, size_t bytes) {
  Worker& w = *worker;
  void* const address = address_in_block(site, shared, rank, bytes);
  if (unsigned(rank) != current_rank()) {
    // Complete when this thread's next barrier is, not one that it is between the halves of.
    const unsigned at = check_target(w, site, unsigned(rank));
    Passage& stored = cluster_barrier(w).stored[rank];
    if (stored.number <= at) stored = {site, at + 1};
  }
  check_store(address, bytes, __builtin_return_address(0));
  memcpy(address, value, bytes);
}

// All that a block expects of a round has come: its threads that wait for it go on.
inline void deliver(Worker& w, unsigned rank, unsigned phase) {
  Mailbox& mailbox = cluster_barrier(w).mailboxes[rank][phase];
  if (!mailbox.expected || mailbox.missing) return;
  mailbox.expected = false;
  ++mailbox.rounds;
  complete_messages(w, rank, phase);
  for (unsigned i = 0; i < block_threads(w); ++i) {
    Fiber& fiber = w.blocks[rank].fibers[i];
    if (fiber.state == kAtLink && (fiber.round & 1) == phase) fiber.state = kReady;
  }
}

void send_message(const Site& site, void* shared, int rank, const void* value, size_t bytes, uint32_t round) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  void* const address = address_in_block(site, shared, rank, bytes);
  check_target(w, site, unsigned(rank));
  check_store(address, bytes, __builtin_return_address(0));
  memcpy(address, value, bytes);
  Mailbox& mailbox = cluster_barrier(w).mailboxes[rank][round & 1];
  mailbox.missing -= int64_t(bytes), mailbox.sent = site;
  send(w, unsigned(rank), round & 1);
  deliver(w, unsigned(rank), round & 1);
  if (w.order && next_random(w.random) & 1) suspend();
}

// The block's first thread says how much it expects, and all wait until so much has come.
void receive_messages(const Site& site, int64_t bytes, uint32_t round) {
  Worker& w = *worker;
  if (!w.current) fail_without_barriers(site);
  Fiber& self = *w.current;
  const unsigned phase = round & 1;
  Mailbox& mailbox = cluster_barrier(w).mailboxes[self.rank][phase];
  if (&self == block_of(w, self).fibers) {
    mailbox.missing += bytes, mailbox.expected = true;
    send(w, self.rank, phase);
    deliver(w, self.rank, phase);
  }
  self.site = site, self.round = round;
  if (mailbox.rounds <= round >> 1) self.state = kAtLink;
  if (self.state != kReady || w.order) suspend();
  see_messages(w, self.rank, phase);
}

}  // namespace fusegen_emulator
