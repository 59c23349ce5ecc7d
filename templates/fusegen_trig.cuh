// Sine, cosine and tangent in float32. Part of fusegen.cuh.
//
// CUDA's sinf, cosf and tanf bring a way for large arguments into every call: a loop over an array in local memory, which
// costs each kernel registers, stack and hundreds of instructions whether or not an argument is ever large. Here that way
// is one function for the whole kernel, without a loop or an array; what a usual argument takes has no branches. Both are
// right for every float. Errors below are of all 2^32 arguments, in units in the last place.
#pragma once

namespace fg {

// An argument of turns * pi/2 + rest - excess. |rest| is at most a little more than pi/4, and excess is what rest was
// rounded by. Of turns, only the last two bits count.
struct QuarterTurns {
  float rest;
  float excess;
  uint32_t turns;
};

// The digits of 2/pi, below a word of zeros.
__constant__ const uint32_t two_over_pi[8] = {0x00000000u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                              0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};

// For 2^16 < |x| (Payne and Hanek): x is a whole number of 24 bits times a power of two, so only 96 digits of 2/pi decide
// how many quarter turns it is, modulo 4, and what is left. Of the product the first two bits are the former, and 62
// more are the latter: no float comes so near to a multiple of pi/2 that its last 24 bits would not be right.
FG_DEVICE QuarterTurns far_quarter_turns(float x) {
  const uint32_t bits = __float_as_uint(x), whole = (bits & 0x7fffffu) | 0x800000u;
  const int place = int((bits >> 23) & 0xffu) - 120, shift = place & 31;
  const uint32_t* words = two_over_pi + (place >> 5);
  const uint32_t high = uint32_t(((uint64_t(words[0]) << 32 | words[1]) << shift) >> 32);
  const uint32_t middle = uint32_t(((uint64_t(words[1]) << 32 | words[2]) << shift) >> 32);
  const uint32_t low = uint32_t(((uint64_t(words[2]) << 32 | words[3]) << shift) >> 32);
  const uint64_t turns = (uint64_t(whole * high) << 32) + uint64_t(whole) * middle + (uint64_t(whole) * low >> 32);
  const uint32_t nearest = uint32_t((turns + (uint64_t(1) << 61)) >> 62);
  // As a signed number, what follows the two bits counts from the nearest quarter turn: pi/2 * 2^-64 a unit.
  const double rest = double(int64_t(turns << 2)) * (x < 0.0f ? -8.515303950216387e-20 : 8.515303950216387e-20);
  const float rounded = float(rest);
  // Plus nothing, but an infinity times nothing is NaN.
  return {fmaf(x, 0.0f, rounded), float(double(rounded) - rest), x < 0.0f ? 0u - nearest : nearest};
}

// pi/2 has three parts, and what the first one leaves of x is a float (Cody and Waite). All are positive, so that zero
// keeps its sign. What the second takes away is rounded once, into rest, and excess says by how much; its product must be
// a number of its own for that. Fast ones are for kernels that round to a half type, and leave excess out.
constexpr float far_from_zero = 100000.0f;
template <bool Fast> FG_DEVICE QuarterTurns quarter_turns(float x) {
  const float shifted = fmaf(x, 0.63661977f, 12582912.0f);  // its last bits are those of the whole number
  const float turns = shifted - 12582912.0f, first = fmaf(turns, -1.57079625f, x);
  const uint32_t last_bits = __float_as_uint(shifted);
  if (Fast) return {fmaf(turns, -5.390303e-15f, fmaf(turns, -7.54978942e-8f, first)), 0.0f, last_bits};
  const float rest = sub_rn(first, mul_rn(turns, 7.54978942e-8f));
  return {rest, fmaf(turns, 5.390303e-15f, fmaf(turns, 7.54978942e-8f, rest - first)), last_bits};
}

// sin(rest - excess) - rest and (cos(rest) - 1) / rest^2, by the nearest polynomials (Remez). The zero that is added
// has the sign which leaves -0 as it is.
FG_DEVICE float sin_beyond(float rest, float excess) {
  const float square = rest * rest;
  const float p = fmaf(fmaf(-0.00019507787f, square, 0.008332106f), square, -0.16666654f);
  return fmaf(fmaf(square, rest, 0.0f), p, -excess);
}
FG_DEVICE float cos_beyond(float square) {
  return fmaf(fmaf(fmaf(2.4436285e-5f, square, -0.0013887349f), square, 0.041666646f), square, -0.5f);
}
// The same within 2^-19 and 2^-23, for kernels that round to a half type.
FG_DEVICE float fast_sin_of(float rest) {
  const float square = rest * rest;
  return fmaf(fmaf(square, rest, 0.0f), fmaf(0.008162262f, square, -0.1666335f), rest);
}
FG_DEVICE float fast_cos_of(float rest) {
  const float square = rest * rest;
  return fmaf(fmaf(fmaf(-0.0013596091f, square, 0.04165617f), square, -0.49999893f), square, 1.0f);
}

// y, or -y where the bit that `turns` has at that place is set.
template <int Place> FG_DEVICE float turned(float y, uint32_t turns) {
  return __uint_as_float(__float_as_uint(y) ^ ((turns << (31 - Place)) & 0x80000000u));
}

// The sine so many quarter turns later: of one, it is the cosine.
template <bool Fast> FG_DEVICE float sin_at(const QuarterTurns& x, uint32_t later) {
  const float square = x.rest * x.rest;
  const float sine = Fast ? fast_sin_of(x.rest) : x.rest + sin_beyond(x.rest, x.excess);
  const float cosine = Fast ? fast_cos_of(x.rest) : fmaf(cos_beyond(square), square, 1.0f);
  const uint32_t turns = x.turns + later;
  return turned<1>(turns & 1u ? cosine : sine, turns);
}
// Sine and cosine as two floats each, and a quotient that is corrected by what it leaves of them. No branch for divisors
// near zero and infinity: there are none.
FG_DEVICE float tan_at(const QuarterTurns& x) {
  const float square = x.rest * x.rest, sin_part = sin_beyond(x.rest, x.excess), cos_part = cos_beyond(square);
  const float sine = x.rest + sin_part, cosine = fmaf(cos_part, square, 1.0f);
  const float sine_low = (x.rest - sine) + sin_part, cosine_low = fmaf(cos_part, square, 1.0f - cosine);
  const bool odd = x.turns & 1u;
  const float a = odd ? cosine : sine, a_low = odd ? cosine_low : sine_low;
  const float b = odd ? sine : cosine, b_low = odd ? sine_low : cosine_low;
  const float inverse = approx_reciprocal(b), quotient = a * inverse;
  const float too_much = fmaf(quotient, b, -a) - fmaf(-quotient, b_low, a_low);  // a zero of it is positive
  return turned<0>(fmaf(-too_much, inverse, quotient), x.turns);
}
FG_DEVICE float fast_tan_at(const QuarterTurns& x) {
  const float sine = fast_sin_of(x.rest), cosine = fast_cos_of(x.rest);
  const bool odd = x.turns & 1u;
  return turned<0>((odd ? cosine : sine) * approx_reciprocal(odd ? sine : cosine), x.turns);
}

// Calls, because they are rare: inlined they would be most of a kernel that computes several elements a thread.
static __device__ __noinline__ float far_sin(float x, uint32_t later) { return sin_at<false>(far_quarter_turns(x), later); }
static __device__ __noinline__ float far_tan(float x) { return tan_at(far_quarter_turns(x)); }

// What stands before the branch is the same for sine and cosine of one argument, so the compiler has it once.
template <bool Fast> FG_DEVICE float sin_later(float x, uint32_t later) {
  float y = sin_at<Fast>(quarter_turns<Fast>(x), later);
  if (fabsf(x) > far_from_zero) y = far_sin(x, later);
  return y;
}
FG_DEVICE float sin(float x) { return sin_later<false>(x, 0); }  // within 1.23
FG_DEVICE float cos(float x) { return sin_later<false>(x, 1); }  // within 1.23
FG_DEVICE float tan(float x) {                                   // within 1.41
  float y = tan_at(quarter_turns<false>(x));
  if (fabsf(x) > far_from_zero) y = far_tan(x);
  return y;
}
FG_DEVICE float fast_sin(float x) { return sin_later<true>(x, 0); }
FG_DEVICE float fast_cos(float x) { return sin_later<true>(x, 1); }
FG_DEVICE float fast_tan(float x) {
  float y = fast_tan_at(quarter_turns<true>(x));
  if (fabsf(x) > far_from_zero) y = far_tan(x);
  return y;
}

FG_DEVICE double sin(double x) { return ::sin(x); }
FG_DEVICE double cos(double x) { return ::cos(x); }
FG_DEVICE double tan(double x) { return ::tan(x); }

}  // namespace fg
