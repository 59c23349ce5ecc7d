// What scans hold, and how threads that share a row put it together in the order of its elements. Behind fusegen.cuh, for
// scan kernels alone.
#pragma once

namespace fg {

// -- what a scan holds: empty, add(element), append(what comes behind), result() ----------------------------------------

template <typename T> struct ScanSum {
  T value = 0;
  FG_DEVICE void add(T x) { value = plus(value, x); }
  FG_DEVICE void append(const ScanSum& next) { add(next.value); }
  FG_DEVICE T result() const { return value; }
};

template <typename T> struct ScanProduct : Product<T> {
  FG_DEVICE void append(const ScanProduct& next) { this->merge(next); }
};
template <typename T> struct ScanMaximum : Maximum<T> {
  FG_DEVICE void append(const ScanMaximum& next) { this->merge(next); }
};
template <typename T> struct ScanMinimum : Minimum<T> {
  FG_DEVICE void append(const ScanMinimum& next) { this->merge(next); }
};

// The extremum of all so far, and where the last of those stands that equal it. A NaN is beyond all, and so is one after it.
// Nothing stands at -1: there every element is the extremum, also one that equals what it starts from.
template <typename T, typename I, bool Most> struct ScanPlace {
  T value = Most ? lowest<T>() : highest<T>();
  I place = I(-1);
  FG_DEVICE void add(T x, I here) {
    const bool wins = isnan(x) | (Most ? x >= value : x <= value);
    value = wins ? x : value;
    place = wins ? here : place;
  }
  FG_DEVICE void append(const ScanPlace& next) {
    const bool wins = (next.place >= 0) & (isnan(next.value) | (Most ? next.value >= value : next.value <= value));
    value = wins ? next.value : value;
    place = wins ? next.place : place;
  }
  FG_DEVICE I result() const { return place; }
};

// The last element alone, and zero before there is one.
template <typename T> struct ScanLast {
  T value = 0, any = 0;  // one where there is one
  FG_DEVICE void add(T x) { value = x, any = 1; }
  FG_DEVICE void append(const ScanLast& next) {
    value = next.any != 0 ? next.value : value;
    any = next.any != 0 ? next.any : any;
  }
  FG_DEVICE T result() const { return value; }
};

FG_DEVICE float exponential(float x) { return expf(x); }
FG_DEVICE double exponential(double x) { return exp(x); }
FG_DEVICE float logarithm(float x) { return logf(x); }
FG_DEVICE double logarithm(double x) { return log(x); }

// log(exp(a) + exp(b)) of all so far, as a sum of exponentials relative to the largest: one more exponential for each. What is
// equal needs none, so that infinities do not meet.
template <typename T> struct ScanLogAddExp {
  T top = lowest<T>(), sum = 0;
  FG_DEVICE void append(const ScanLogAddExp& next) {
    const T less = next.top == top ? T(1) : exponential(-abs(next.top - top));
    sum = next.top <= top ? sum + next.sum * less : sum * less + next.sum;
    top = maximum(top, next.top);
  }
  FG_DEVICE void add(T x) {
    ScanLogAddExp one;
    one.top = x, one.sum = 1;
    append(one);
  }
  FG_DEVICE T result() const { return top + logarithm(sum); }
};

// Several steps h = factor * h + value are one such step. Their factors' product may overflow where the steps, one by one,
// have nothing to multiply.
template <typename T> struct ScanAffine {
  T factor = 1, value = 0;
  FG_DEVICE void add(T a, T b) {
    value = a * value + b;
    factor *= a;
  }
  FG_DEVICE void append(const ScanAffine& next) {
    const T steps = next.factor * value;  // without branches: many lanes do this at once
    const bool nothing = (value == 0) & ((next.factor == infinity<T>()) | (next.factor == -infinity<T>()));
    value = (nothing ? T(0) : steps) + next.value;
    factor *= next.factor;
  }
  FG_DEVICE T result() const { return value; }
};

// A sum that begins anew at each element that does not go on.
template <typename T> struct ScanSegments {
  T value = 0, goes_on = 1;  // one or zero: as a byte, it would be put together with others in memory
  FG_DEVICE void add(bool on, T x) {
    value = on ? value + x : x;
    goes_on = on ? goes_on : T(0);
  }
  FG_DEVICE void append(const ScanSegments& next) {
    value = next.goes_on != 0 ? value + next.value : next.value;
    goes_on = next.goes_on != 0 ? goes_on : T(0);
  }
  FG_DEVICE T result() const { return value; }
};

// -- threads in a row -----------------------------------------------------------------------------------------------------

template <typename S> FG_DEVICE S shuffle_up(const S& state, int distance) {
  Stored<S> stored;
  stored.put(state);
#pragma unroll
  for (int i = 0; i < Stored<S>::words; ++i) stored.word[i] = __shfl_up_sync(0xffffffffu, stored.word[i], distance);
  return stored.get();
}
template <typename S> FG_DEVICE S shuffle_from(const S& state, int lane) {
  Stored<S> stored;
  stored.put(state);
#pragma unroll
  for (int i = 0; i < Stored<S>::words; ++i) stored.word[i] = __shfl_sync(0xffffffffu, stored.word[i], lane);
  return stored.get();
}

// What the lanes of a row hold before this one; and all of them.
template <int Lanes, typename S> FG_DEVICE S before_lane(S state, S& all) {
  const int lane = threadIdx.x % 32, own = lane % Lanes;
  if (Lanes == 1) {
    all = state;
    return S();
  }
#pragma unroll
  for (int distance = 1; distance < Lanes; distance *= 2) {
    S before = shuffle_up(state, distance);
    before.append(state);
    state = own >= distance ? before : state;
  }
  all = shuffle_from(state, lane - own + Lanes - 1);
  const S before = shuffle_up(state, 1);
  return own == 0 ? S() : before;
}

// What stands before each of a thread's vectors; all lanes have one of a turn before any has one of the next.
// `carry` is what stands before the first, and then before what comes behind the last.
template <int Lanes, int Turns, typename S> FG_DEVICE void scan_lanes(const S (&own)[Turns], S (&before)[Turns], S& carry) {
#pragma unroll
  for (int turn = 0; turn < Turns; ++turn) {
    S all;
    const S lanes = before_lane<Lanes>(own[turn], all);
    before[turn] = carry;
    before[turn].append(lanes);
    carry.append(all);
  }
}

// The same of a block of warps, of which all turns have 32 totals at most. Totals alternate between two places (`place`), so
// that nobody writes what others still read.
template <int Warps, int Turns, typename S>
FG_DEVICE void scan_block(const S (&own)[Turns], S (&before)[Turns], S& carry, int& place) {
  FUSEGEN_SHARED(Stored<S>, totals, [2][32]);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int turn = 0; turn < Turns; ++turn) {
    S all;
    before[turn] = before_lane<32>(own[turn], all);
    if (lane == 0) totals[place][turn * Warps + warp].put(all);
  }
  __syncthreads();
  S total, all;
  if (lane < Turns * Warps) total = totals[place][lane].get();
  const S earlier = before_lane<32>(total, all);
#pragma unroll
  for (int turn = 0; turn < Turns; ++turn) {
    S mine = carry;
    mine.append(shuffle_from(earlier, turn * Warps + warp));
    mine.append(before[turn]);
    before[turn] = mine;
  }
  carry.append(all);
  place = 1 - place;
}

}  // namespace fg
