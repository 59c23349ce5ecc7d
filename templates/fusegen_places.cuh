// Places out of range, reported (core/within.py). Kernels that read or write where a tensor says include this, and no
// others do: the host tells the module of each where its record is.
#pragma once

namespace fg {

// A place that no tensor has, which is no mistake.
constexpr int64_t nowhere = -(int64_t(1) << 62);

#ifdef FUSEGEN_EMULATOR
inline void report_place(int64_t place, int64_t size, int64_t position, int site) {
  if (place != nowhere && place != nowhere + size) fusegen_emulator::misplaced(place, size, position, site);
}
#else
// One place out of range, in memory of the host (launch/reports.py has the same fields).
struct PlaceReport {
  unsigned state;  // 0, 1 while it is written, 2
  int site;
  int64_t kernel, place, size, position;
};
struct PlaceReports {
  PlaceReport* first;  // of this device; the first report stays until the host has seen it
  unsigned* flag;      // of all devices: that there are any
  int64_t kernel;
};
}  // namespace fg

extern "C" {
__device__ fg::PlaceReports fusegen_place_reports;
}

namespace fg {

// A function of its own: what calls it has as few registers as without.
static __device__ __noinline__ void report_place(int64_t place, int64_t size, int64_t position, int site) {
  PlaceReport* report = fusegen_place_reports.first;
  if (place == nowhere || place == nowhere + size || !report) return;
  // Only threads of one device contend for its record. Memory of the host need not have atomics of the whole system.
  if (atomicCAS(&report->state, 0u, 1u) != 0) return;
  report->site = site;
  report->kernel = fusegen_place_reports.kernel;
  report->place = place;
  report->size = size;
  report->position = position;
  __threadfence_system();
  atomicExch(&report->state, 2u);
  __threadfence_system();
  *static_cast<volatile unsigned*>(fusegen_place_reports.flag) = 1;
}
#endif

// ``place``, which is reported where an axis of ``size`` has no such place. Of elements that do not ``exist`` there is
// nothing to report.
FG_DEVICE int64_t within(int64_t place, int64_t size, int64_t position, int site, bool exist = true) {
  if (uint64_t(place) >= uint64_t(size) && exist) report_place(place, size, position, site);
  return place;
}

}  // namespace fg
