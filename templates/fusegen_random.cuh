// Random numbers by counting: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011). A number is a function of a seed and of where it stands, so whoever needs it again computes it again. Part of
// fusegen.cuh.
#pragma once

namespace fg {

struct RandomWords {
  uint32_t words[4];
};

FG_DEVICE RandomWords philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t low = uint32_t(key), high = uint32_t(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t a = __umulhi(0xD2511F53u, c0), b = __umulhi(0xCD9E8D57u, c2);
    const uint32_t c = 0xD2511F53u * c0, d = 0xCD9E8D57u * c2;
    c0 = b ^ c1 ^ low;
    c2 = a ^ c3 ^ high;
    c1 = d;
    c3 = c;
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// The bits of one element. Four neighbours in a row are the four words of one count, and what is counted is the column of
// the first: so a thread that has all four counts once for them, as soon as the compiler knows which of the four is which.
FG_DEVICE uint32_t random_bits(int64_t seed, int64_t draw, int64_t row, int64_t column) {
  const uint32_t which = uint32_t(column) & 3;
  const uint64_t first = uint64_t(column - which), place = uint64_t(row);
  // No tensor has 2^32 rows of 2^32 columns, so the upper halves of both can share a word.
  const RandomWords four = philox(
      uint64_t(seed), uint32_t(first), uint32_t(place), uint32_t(place >> 32) ^ uint32_t(first >> 32), uint32_t(draw));
  return which < 2 ? (which == 0 ? four.words[0] : four.words[1]) : (which == 2 ? four.words[2] : four.words[3]);
}

// Tells the compiler where vectors begin, so that it knows which of the four is which.
template <int N> FG_DEVICE void assume_multiple(int place) {
#ifdef FUSEGEN_EMULATOR
  if (place % N != 0) __trap();
#else
  __builtin_assume((place & (N - 1)) == 0);
#endif
}

// In [0, 1): multiples of 2^-24, each as likely as the others.
FG_DEVICE float uniform(int64_t seed, int64_t draw, int64_t row, int64_t column) {
  return float(random_bits(seed, draw, row, column) >> 8) * 0x1p-24f;
}

// In (0, 1]: finer than the above near zero, where a logarithm looks.
FG_DEVICE float positive_uniform(int64_t seed, int64_t draw, int64_t row, int64_t column) {
  return fmaf(float(random_bits(seed, draw, row, column)), 0x1p-32f, 0x1p-33f);
}

// In [0, 1): multiples of 2^-53. Two draws.
FG_DEVICE double uniform_double(int64_t seed, int64_t draw, int64_t row, int64_t column) {
  const uint64_t high = random_bits(seed, draw, row, column), low = random_bits(seed, draw + 1, row, column);
  return double((high << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace fg
