// Scalar functions that CUDA does not have, or that torch defines otherwise. Part of fusegen.cuh.
#pragma once

namespace fg {

// -- scalar functions -----------------------------------------------------------------------------------------------

template <typename T> FG_DEVICE T infinity();
template <> FG_DEVICE float infinity<float>() { return __int_as_float(0x7f800000); }
template <> FG_DEVICE double infinity<double>() { return __longlong_as_double(0x7ff0000000000000LL); }
template <typename T> FG_DEVICE T nan();
template <> FG_DEVICE float nan<float>() { return __int_as_float(0x7fc00000); }
template <> FG_DEVICE double nan<double>() { return __longlong_as_double(0x7ff8000000000000LL); }

template <typename T> FG_DEVICE bool isnan(T x) { return x != x; }
FG_DEVICE bool isinf(float x) { return fabsf(x) == infinity<float>(); }
FG_DEVICE bool isinf(double x) { return fabs(x) == infinity<double>(); }
FG_DEVICE bool isfinite(float x) { return fabsf(x) < infinity<float>(); }
FG_DEVICE bool isfinite(double x) { return fabs(x) < infinity<double>(); }

// The low 16 bits. Compilers make a negation in 16 bits of -x, and ptxas of CUDA 13.0 forgets there to wrap around what
// is read in 32 bits: -(-32768) was larger than 5. So they are not told what the int is made of.
FG_DEVICE int16_t to_int16(int x) {
#ifndef FUSEGEN_EMULATOR
  asm("" : "+r"(x));
#endif
  return int16_t(x);
}

// Integers wrap around, as in torch. C leaves it undefined where signed ones overflow, and compilers reason from that.
template <typename T> FG_DEVICE T wrapping_add(T a, T b) { return T(uint64_t(a) + uint64_t(b)); }
template <typename T> FG_DEVICE T wrapping_sub(T a, T b) { return T(uint64_t(a) - uint64_t(b)); }
template <typename T> FG_DEVICE T wrapping_mul(T a, T b) { return T(uint64_t(a) * uint64_t(b)); }
template <typename T> FG_DEVICE T wrapping_neg(T a) { return T(0 - uint64_t(a)); }
FG_DEVICE int16_t wrapping_neg(int16_t a) { return to_int16(-int(a)); }
template <typename T> FG_DEVICE T plus(T a, T b) {
  if constexpr (T(0.5) == T(0)) return wrapping_add(a, b);
  else return T(a + b);
}
template <typename T> FG_DEVICE T times(T a, T b) {
  if constexpr (T(0.5) == T(0)) return wrapping_mul(a, b);
  else return T(a * b);
}

FG_DEVICE float abs(float x) { return fabsf(x); }
FG_DEVICE double abs(double x) { return fabs(x); }
template <typename T> FG_DEVICE T abs(T x) { return x < T(0) ? wrapping_neg(x) : x; }
FG_DEVICE float sign(float x) { return float(x > 0.0f) - float(x < 0.0f); }
template <typename T> FG_DEVICE T sign(T x) { return T(int(x > T(0)) - int(x < T(0))); }

// NaN wins, as in torch; the plain comparison below is false for it on both sides.
#if defined(FUSEGEN_EMULATOR) || __CUDA_ARCH__ < 800
FG_DEVICE float minimum(float a, float b) { return a != a ? a : (b < a || b != b ? b : a); }
FG_DEVICE float maximum(float a, float b) { return a != a ? a : (b > a || b != b ? b : a); }
#else
FG_DEVICE float minimum(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
FG_DEVICE float maximum(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif
template <typename T> FG_DEVICE T minimum(T a, T b) { return a != a ? a : (b < a || b != b ? b : a); }
template <typename T> FG_DEVICE T maximum(T a, T b) { return a != a ? a : (b > a || b != b ? b : a); }
// Both are computed before one is chosen: no branch, behind which a thread's next elements would wait.
FG_DEVICE float select(bool condition, float one, float other) { return condition ? one : other; }
template <typename T> FG_DEVICE T clamp(T x, T low, T high) { return minimum(maximum(x, low), high); }

// The instructions of the special function unit.
#ifdef FUSEGEN_EMULATOR
// As far off as the hardware may be (PTX manual: ex2, lg2, rcp, rsqrt), in one direction or the other, so that a formula
// that leans on more than that fails here too.
FG_DEVICE float approx_error(float x, float error) { return __float_as_uint(x) * 2654435761u >> 31 ? error : -error; }
FG_DEVICE float approx_exp2(float x) {
  const float y = exp2f(x);
  return x == floorf(x) ? y : y * (1.0f + approx_error(x, 2.4e-7f));
}
FG_DEVICE float approx_exp2_flushing(float x) { return x < -126.0f ? 0.0f : approx_exp2(x); }
// The error is absolute around 1, where the result itself is close to zero.
FG_DEVICE float approx_log2(float x) {
  const float y = log2f(x);
  const float error = approx_error(x, 2.4e-7f);
  return y == floorf(y) ? y : (x > 0.5f && x < 2.0f ? y + error : y * (1.0f + error));
}
FG_DEVICE float approx_rsqrt(float x) {
  const float y = float(1.0 / std::sqrt(double(x)));
  return x > 0.0f && x < infinity<float>() ? y * (1.0f + approx_error(x, 1.6e-7f)) : y;
}
// Of what is not subnormal, and of zero.
FG_DEVICE float approx_rsqrt_flushing(float x) { return approx_rsqrt(x); }
FG_DEVICE float approx_sqrt(float x) {
  const float y = float(std::sqrt(double(x)));
  return x > 0.0f && x < infinity<float>() ? y * (1.0f + approx_error(x, 1.2e-7f)) : y;
}
FG_DEVICE float approx_reciprocal(float x) {
  if (fabsf(x) < 1.17549435e-38f) return copysignf(infinity<float>(), x);
  const float y = 1.0f / x;
  if (fabsf(y) < 1.17549435e-38f) return copysignf(0.0f, x);
  return (__float_as_uint(x) & 0x7fffffu) == 0 ? y : y * (1.0f + approx_error(x, 1.2e-7f));
}
#else
FG_DEVICE float approx_exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_exp2_flushing(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_log2(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_rsqrt_flushing(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_sqrt(float x) {
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FG_DEVICE float approx_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// a / b, rounded correctly but for what lies within 2^-20 ulp of a tie, and for an ulp or two where a or the quotient is
// below 2^-100. C's division has a branch for tiny and huge operands, and a thread's next elements wait behind it. Here
// such divisors are scaled, both sides of the fraction alike and by a power of two, and a quotient that is corrected once
// needs no branch. Where the quotient is zero, infinite or NaN it is right, and its correction is not.
FG_DEVICE float divide(float a, float b) {
  const float size = fabsf(b), tiny = 7.888609052210118e-31f, huge = 1.2676506002282294e30f;  // 2^-100, 2^100
  // 2^-64, 2^64
  const float scale = size > huge ? 5.421010862427522e-20f : (size < tiny ? 1.8446744073709552e19f : 1.0f);
  const float above = __fmul_rn(a, scale), below = __fmul_rn(b, scale);
  const float inverse = approx_reciprocal(below), quotient = __fmul_rn(above, inverse);
  const float corrected = __fmaf_rn(__fmaf_rn(-quotient, below, above), inverse, quotient);
  return corrected == corrected && quotient != 0.0f ? corrected : quotient;
}
FG_DEVICE double divide(double a, double b) { return a / b; }
// For kernels that round to a half type: within 2 ulp, for all a and b (PTX manual: div.full), and a third cheaper.
FG_DEVICE float fast_divide(float a, float b) {
#ifdef FUSEGEN_EMULATOR
  const float quotient = a / b;
  return quotient != 0.0f && fabsf(quotient) < infinity<float>() ? quotient * (1.0f + approx_error(b, 1.2e-7f)) : quotient;
#else
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
#endif
}

// The square root, for the same reason without C's branch: x / sqrt(x), corrected once. Within 2^-20 ulp of a tie it may
// be rounded the other way.
FG_DEVICE float sqrt(float x) {
  // Below 2^-100 what corrects it would be subnormal, so there x is 2^64 times as large.
  const bool tiny = x < 7.888609052210118e-31f;
  const float scaled = tiny ? __fmul_rn(x, 1.8446744073709552e19f) : x;
  const float inverse = approx_rsqrt_flushing(scaled), root = __fmul_rn(scaled, inverse);
  const float corrected = __fmaf_rn(__fmaf_rn(-root, root, scaled), __fmul_rn(0.5f, inverse), root);
  const float found = tiny ? __fmul_rn(corrected, 2.3283064365386963e-10f) : corrected;
  return x == 0.0f || x == infinity<float>() ? x : found;
}
FG_DEVICE double sqrt(double x) { return ::sqrt(x); }
// For kernels that round to a half type: within an ulp (PTX manual: sqrt.approx).
FG_DEVICE float fast_sqrt(float x) { return approx_sqrt(x); }

// x / n for a number of elements n, which is neither tiny nor huge.
FG_DEVICE float divide_by_count(float x, float n) {
#ifdef FUSEGEN_EMULATOR
  return x / n;
#else
  const float inverse = approx_reciprocal(n), quotient = x * inverse;
  const float corrected = fmaf(fmaf(-quotient, n, x), inverse, quotient);
  return corrected == corrected ? corrected : quotient * (n > 0.0f ? 1.0f : nan<float>());
#endif
}

FG_DEVICE double divide_by_count(double x, double n) { return x / n; }

// Each rounded by itself: no compiler makes one operation of two of these, or of one and its neighbour.
FG_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
FG_DEVICE double add_rn(double a, double b) { return __dadd_rn(a, b); }
FG_DEVICE float sub_rn(float a, float b) { return __fsub_rn(a, b); }
FG_DEVICE double sub_rn(double a, double b) { return __dsub_rn(a, b); }
FG_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
FG_DEVICE double mul_rn(double a, double b) { return __dmul_rn(a, b); }
FG_DEVICE float div_rn(float a, float b) { return divide(a, b); }
FG_DEVICE double div_rn(double a, double b) { return __ddiv_rn(a, b); }

template <typename T> FG_DEVICE T square(T x) { return times(x, x); }
template <int N, typename T> FG_DEVICE T powi(T x) {
  if (N == 1) return x;
  const T root = powi<(N > 1 ? N / 2 : 1)>(x);
  return N % 2 ? times(times(root, root), x) : times(root, root);
}

// Conversions that C++ leaves undefined saturate on the hardware; NaN becomes 0.
template <typename T> FG_DEVICE T to_integer(double x) {
#ifdef FUSEGEN_EMULATOR
  if (x != x) return T(0);
  if (x >= 9223372036854775807.0) return T(9223372036854775807LL);
  if (x <= -9223372036854775808.0) return T(-9223372036854775807LL - 1);
#endif
  return T(int64_t(x));
}

template <typename T> FG_DEVICE T left_shift(T x, T by) { return by < 0 || by >= T(8 * sizeof(T)) ? T(0) : T(uint64_t(x) << by); }
template <typename T> FG_DEVICE T right_shift(T x, T by) {
  const int last = 8 * int(sizeof(T)) - 1;
  return T(x >> (by < 0 || by > last ? last : int(by)));
}
FG_DEVICE bool bitwise_not(bool x) { return !x; }
template <typename T> FG_DEVICE T bitwise_not(T x) { return T(~x); }

// Division and remainders, as Python and torch round them. Integer division by zero answers 0 instead of trapping.
// Floats mostly by one division. Its whole part is that of the quotient or, where it was rounded up, one more; either way
// what is left is exact. Where |a| < |b| that is |a|, and b may be infinite. tools/slots.py counts only what is usual.
#ifdef FUSEGEN_COUNTING
FG_DEVICE bool usually(bool) { return true; }
#else
FG_DEVICE bool usually(bool holds) { return holds; }
#endif
struct Divided {
  float whole, left;  // |a| = whole |b| + left, where it is exact
  bool exact;
};
FG_DEVICE Divided divided(float a, float b) {
  const float x = fabsf(a), y = fabsf(b);
  const float whole = truncf(divide(x, y)), left = fmaf(-whole, y, x);
  if (x < y) return {0.0f, x, true};
  const bool more = left < 0.0f;
  // Quotients of what is below 2^-100 may be off by more; from 2^21 on torch.floor_divide rounds on its way.
  return {more ? whole - 1.0f : whole, more ? left + y : left, x > 7.888609052210118e-31f && whole < 2097152.0f};
}
FG_DEVICE float fmod(float a, float b) {
  const Divided by = divided(a, b);
  return usually(by.exact) ? copysignf(by.left, a) : ::fmodf(a, b);
}
FG_DEVICE double fmod(double a, double b) { return ::fmod(a, b); }
// The lowest number divided by -1 has no room. The largest of an unsigned type equals T(-1), and divides as any other.
template <typename T> FG_DEVICE bool is_minus_one(T b) { return T(-1) < T(0) && b == T(-1); }
template <typename T> FG_DEVICE T fmod(T a, T b) { return b == T(0) || is_minus_one(b) ? T(0) : T(a % b); }
template <typename T> FG_DEVICE T float_remainder(T a, T b) {
  const T r = fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}
FG_DEVICE float remainder(float a, float b) { return float_remainder(a, b); }
FG_DEVICE double remainder(double a, double b) { return float_remainder(a, b); }
template <typename T> FG_DEVICE T remainder(T a, T b) {
  const T r = fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? T(r + b) : r;
}
template <typename T> FG_DEVICE T float_floor_divide(T a, T b) {
  if (b == T(0)) return a / b;
  const T r = fmod(a, b);
  T quotient = (a - r) / b;
  if (r != T(0) && (b < T(0)) != (r < T(0))) quotient -= T(1);
  if (quotient == T(0)) return copysign(T(0), a / b);
  const T whole = floor(quotient);
  return quotient - whole > T(0.5) ? whole + T(1) : whole;
}
FG_DEVICE float floor_divide(float a, float b) {
  const Divided by = divided(a, b);
  if (!usually(by.exact)) return float_floor_divide(a, b);
  const bool negative = (__float_as_uint(a) ^ __float_as_uint(b)) >> 31;
  return negative ? -(by.left != 0.0f ? by.whole + 1.0f : by.whole) : by.whole;
}
FG_DEVICE double floor_divide(double a, double b) { return float_floor_divide(a, b); }
template <typename T> FG_DEVICE T floor_divide(T a, T b) {
  if (b == T(0)) return T(0);
  if (is_minus_one(b)) return wrapping_neg(a);
  return T(a / b - (a % b != T(0) && (a < T(0)) != (b < T(0))));
}

// Integers wrap around; a negative power is 0, except of 1 and -1.
template <typename T> FG_DEVICE T int_pow(T base, T exponent) {
  if (exponent < T(0)) return base == T(1) ? T(1) : base == T(-1) ? (exponent % 2 ? T(-1) : T(1)) : T(0);
  uint64_t result = 1, factor = uint64_t(base);
  for (uint64_t left = uint64_t(exponent); left; left >>= 1) {
    if (left & 1) result *= factor;
    factor *= factor;
  }
  return T(result);
}

template <typename T> FG_DEVICE T xlogy(T a, T b) { return b != b ? b : (a == T(0) ? T(0) : a * T(log(b))); }

// a / b for 1 <= b < 2^120, which spares the branches that general division has for b near zero and infinity: one
// Newton step on the approximate reciprocal, within an ulp.
#ifdef FUSEGEN_EMULATOR
FG_DEVICE float ratio(float a, float b) { return a / b; }
#else
FG_DEVICE float ratio(float a, float b) {
  const float r = approx_reciprocal(b), q = a * r;
  return __fmaf_rn(__fmaf_rn(-q, b, a), r, q);
}
#endif
FG_DEVICE double ratio(double a, double b) { return a / b; }

// The logistic family, from one exponential of a non-positive argument: nothing overflows, nothing cancels.
FG_DEVICE float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return ratio(x >= 0.0f ? 1.0f : e, 1.0f + e);
}
FG_DEVICE double sigmoid(double x) {
  const double e = exp(-fabs(x));
  return (x >= 0.0 ? 1.0 : e) / (1.0 + e);
}
// exp(x), x clamped where the square is still finite and the power -4 is zero; NaN for NaN.
FG_DEVICE float exp_clamped(float x) { return expf(x > 40.0f ? 40.0f : x); }
FG_DEVICE double exp_clamped(double x) { return exp(x > 350.0 ? 350.0 : x); }
FG_DEVICE float softplus(float x) { return maximum(x, 0.0f) + log1pf(expf(-fabsf(x))); }
FG_DEVICE double softplus(double x) { return maximum(x, 0.0) + log1p(exp(-fabs(x))); }
FG_DEVICE float logsigmoid(float x) { return minimum(x, 0.0f) - log1pf(expf(-fabsf(x))); }
FG_DEVICE double logsigmoid(double x) { return minimum(x, 0.0) - log1p(exp(-fabs(x))); }

// -- faster texts for kernels that round to a half type: a few float32 ulp, far under half an ulp of the result --------

// log(1 + e) for |e| < 0.1, where the approximate logarithm of 1 + e has few digits left.
FG_DEVICE float near_log1p(float e) {
  return e * (1.0f + e * (-0.5f + e * (0.33333333f + e * (-0.25f + e * (0.2f - 0.16666667f * e)))));
}
FG_DEVICE float fast_exp2(float x) { return approx_exp2(x); }
FG_DEVICE float fast_exp(float x) { return approx_exp2(x * 1.4426950408889634f); }
// e^x for x up to 70, subnormal results included: the instruction that flushes them works 2^24 higher, which costs one
// multiplication where the instruction that keeps them costs three.
FG_DEVICE float fast_exp_below(float x) {
  return approx_exp2_flushing(x * 1.4426950408889634f + 24.0f) * 5.9604644775390625e-8f;
}
// e^x for an x of at most 8, beside a term of at least 1: what is below the normal numbers counts as nothing.
FG_DEVICE float fast_exp_from_top(float x) { return approx_exp2_flushing(x * 1.4426950408889634f); }
FG_DEVICE float fast_exp_clamped(float x) { return fast_exp_below(minimum(x, 40.0f)); }
FG_DEVICE float fast_log2(float x) {
  return fabsf(x - 1.0f) < 0.1f ? near_log1p(x - 1.0f) * 1.4426950408889634f : approx_log2(x);
}
FG_DEVICE float fast_log(float x) {
  return fabsf(x - 1.0f) < 0.1f ? near_log1p(x - 1.0f) : approx_log2(x) * 0.6931471805599453f;
}
FG_DEVICE float fast_log10(float x) { return fast_log2(x) * 0.30102999566398120f; }
FG_DEVICE float fast_log1p(float x) {
  return fabsf(x) < 0.1f ? near_log1p(x) : approx_log2(1.0f + x) * 0.6931471805599453f;
}
FG_DEVICE float fast_xlogy(float a, float b) { return a == 0.0f && b == b ? 0.0f : a * fast_log(b); }
// e^x - 1: near zero, where that cancels, the series.
FG_DEVICE float fast_expm1(float x) {
  const float tail = 0.16666667f + x * (0.041666668f + x * (0.008333334f + x * 0.0013888889f));
  return fabsf(x) < 0.25f ? x * (1.0f + x * (0.5f + x * tail)) : fast_exp(x) - 1.0f;
}
// a^b as 2^(b log2 |a|): where that is finite the exponent is at most 128, and so is what the logarithm's relative error
// of 2^-21 is multiplied by.
FG_DEVICE float fast_pow(float a, float b) {
  const float size = fabsf(a), half_b = 0.5f * b;
  const bool whole = floorf(b) == b, odd = whole && floorf(half_b) != half_b;
  const float power = b == 0.0f || (size == 1.0f && b == b) ? 1.0f : approx_exp2(b * fast_log2(size));
  if (a == 1.0f) return 1.0f;  // to the power NaN as well
  if (a < 0.0f && !whole && size != infinity<float>()) return nan<float>();
  return odd ? copysignf(power, a) : power;
}
// log(1 + e) for 0 <= e <= 1, within 2^-16 of itself: e times the polynomial of degree 5 nearest to log(1 + e) / e
// (Remez). Six multiply-adds cost less than one call of the special function unit, which is the bottleneck here.
FG_DEVICE float unit_log1p(float e) {
  float p = -0.0238691554f;
  p = p * e + 0.101222292f;
  p = p * e - 0.210048693f;
  p = p * e + 0.32520668f;
  p = p * e - 0.499361365f;
  return (p * e + 0.999991598f) * e;
}
FG_DEVICE float fast_ratio(float a, float b) { return a * approx_reciprocal(b); }
// 1 / (1 + e) or e / (1 + e) with e = exp(-|x|): never above 1, and for very negative x it is e, subnormals included.
FG_DEVICE float fast_sigmoid(float x) {
  const float e = fast_exp_below(-fabsf(x));
  const float r = approx_reciprocal(1.0f + e);
  return x >= 0.0f ? r : e * r;
}
FG_DEVICE float fast_softplus(float x) { return maximum(x, 0.0f) + unit_log1p(fast_exp_below(-fabsf(x))); }
FG_DEVICE float fast_logsigmoid(float x) { return minimum(x, 0.0f) - unit_log1p(fast_exp_below(-fabsf(x))); }
// Near zero 1 - 2 / (1 + e^2x) cancels; there the odd series is exact enough.
FG_DEVICE float fast_tanh(float x) {
  const float x2 = x * x;
  const float near = x * (1.0f + x2 * (-0.33333333f + x2 * (0.13333333f - 0.05396825f * x2)));
  const float far = 1.0f - 2.0f * approx_reciprocal(1.0f + approx_exp2_flushing(x * 2.8853900817779268f));
  return fabsf(x) < 0.25f ? near : far;
}
// erfc(|x|) = exp(-x^2) R(t) with t = 1 / (2.75 + |x|), R the polynomial without constant term that is relatively nearest
// (Remez): within 2^-23 for |x| < 1, where gelu's derivative cancels, 2^-21 up to 4, where float16 ends, and 2^-17 up to
// 9.6, where bfloat16 does. It carries the 2^-24 of fast_exp_below; where a kernel has exp(-x^2) as well (gelu's
// derivative), the compiler sees one exponential.
FG_DEVICE float fast_erfc(float x) {
  const float t = approx_reciprocal(2.75f + fabsf(x));
  float r = -1.1261525e-5f;
  r = r * t + 1.3580974e-5f;
  r = r * t - 2.8846712e-6f;
  r = r * t + 1.3610111e-6f;
  r = r * t + 1.4753834e-7f;
  r = r * t + 9.7875024e-8f;
  r = r * t + 3.3495063e-8f;
  const float tail = approx_exp2_flushing(-(x * x) * 1.4426950408889634f + 24.0f) * (r * t);
  return x < 0.0f ? 2.0f - tail : tail;
}

// -- digamma and its derivatives ------------------------------------------------------------------------------------

// Digamma: reflection for x < 0, recurrence up to 10, then the asymptotic series (Abramowitz and Stegun 6.3.18).
template <typename T> FG_DEVICE T digamma_of(T x) {
  const T pi = T(3.14159265358979323846);
  if (x == T(0)) return copysign(infinity<T>(), -x);
  T result = T(0);
  if (x < T(0)) {
    const T rest = x - T(rint(x));  // exact, and the cotangent has period 1
    if (!(rest != T(0))) return nan<T>();
    result = -pi / T(tan(pi * rest));
    x = T(1) - x;
  }
  if (x == T(10)) return result + T(2.25175258906672110764);
  while (x < T(10)) {
    result -= T(1) / x;
    x += T(1);
  }
  if (!(x < T(1e17))) return result + T(log(x));
  const T z = T(1) / (x * x);
  const T series =
      z * (T(1.0 / 12) -
           z * (T(1.0 / 120) -
                z * (T(1.0 / 252) - z * (T(1.0 / 240) - z * (T(1.0 / 132) - z * (T(691.0 / 32760) - z * T(1.0 / 12)))))));
  return result + T(log(x)) - T(0.5) / x - series;
}
FG_DEVICE double digamma(double x) { return digamma_of(x); }
FG_DEVICE float digamma(float x) { return float(digamma_of(double(x))); }

// Hurwitz zeta(s, q) for whole s > 1, by direct terms and the Euler-Maclaurin formula.
FG_DEVICE double hurwitz_zeta(double s, double q) {
  if (q <= 0.0 && floor(q) == q) return infinity<double>();
  double total = 0.0;
  double x = q;
  for (int k = 0; k < 12 || x < 9.0; ++k) {
    total += pow(x, -s);
    x += 1.0;
  }
  total += pow(x, 1.0 - s) / (s - 1.0) + 0.5 * pow(x, -s);
  // (2j)! / B_2j
  const double terms[8] = {12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1307674368000.0 / 691.0, 74724249600.0,
                           -10670622842880000.0 / 3617.0};
  double factor = s * pow(x, -s - 1.0);
  for (int j = 0; j < 8; ++j) {
    total += factor / terms[j];
    factor *= (s + 2 * j + 1) * (s + 2 * j + 2) / (x * x);
  }
  return total;
}
// The n-th derivative of pi cot(pi x) at `rest`, x without its whole part: pi^(n + 1) P_n(c) with c = cot(pi x), where
// P_0 = c and P_(k + 1) = -(1 + c^2) P_k'.
template <int N> FG_DEVICE double cotangent_derivative(double rest) {
  const double pi = 3.14159265358979323846;
  const double c = 1.0 / tan(pi * rest);
  double p[N + 2] = {0.0, 1.0};
  double scale = pi;
  for (int k = 0; k < N; ++k) {
    double next[N + 2] = {};
    for (int j = 1; j <= k + 1; ++j) {
      next[j - 1] -= j * p[j];
      next[j + 1] -= j * p[j];
    }
    for (int j = 0; j < N + 2; ++j) p[j] = next[j];
    scale *= pi;
  }
  double value = 0.0;
  for (int j = N + 1; j >= 0; --j) value = value * c + p[j];
  return scale * value;
}
// polygamma(n, x) = (-1)^(n + 1) n! zeta(n + 1, x) for n >= 1; left of zero by reflection.
template <int N> FG_DEVICE double polygamma(double x) {
  double factorial = 1.0;
  for (int k = 2; k <= N; ++k) factorial *= k;
  const double rest = x - rint(x);
  const bool mirror = x < 0.0 && rest != 0.0;
  const double value = (N % 2 ? factorial : -factorial) * hurwitz_zeta(N + 1, mirror ? 1.0 - x : x);
  return mirror ? (N % 2 ? -value : value) - cotangent_derivative<N>(rest) : value;
}
template <int N> FG_DEVICE float polygamma(float x) { return float(polygamma<N>(double(x))); }

}  // namespace fg
