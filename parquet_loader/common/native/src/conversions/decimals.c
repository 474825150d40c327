#include "decimals.h"

#include <string.h>

#include "../kernels.h"

enum { AT_ONCE = 256, EXACT_POWERS = 22 };
#define EXACT_INTEGERS (INT64_C(1) << 53)  /* float64 represents all integers up to it */

typedef struct {
  uint64_t low, high;  /* two's complement */
} Wide;

static const double powers[EXACT_POWERS + 1] = {
  1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
  1e21, 1e22};

/* Converts an integer of at most EXACT_INTEGERS. Compilers make vectors of this, unlike of a conversion. */
INLINE double exact_float(int64_t integer) {
  const uint64_t biased = (uint64_t)integer + EXACT_INTEGERS, exponent = UINT64_C(0x433) << 52;  /* that of 2**52 */
  const uint64_t high_bits = biased >> 32 | exponent, low_bits = (biased & UINT32_MAX) | exponent;
  double high, low;
  memcpy(&high, &high_bits, sizeof high);
  memcpy(&low, &low_bits, sizeof low);
  return (high - (0x1p52 + 0x1p21)) * 0x1p32 + (low - 0x1p52);
}

/* Reads an integer and extends its sign. */
INLINE Wide wide_of(const uint8_t *in, const int64_t width, const int is_big_endian) {
  Wide wide;
  uint8_t bytes[DECIMAL_BYTES];
  /* In registers: a word that was just stored byte by byte is slow to load. */
  if (width == 4) {
    uint32_t word;
    memcpy(&word, in, 4);
    const int32_t value = (int32_t)(is_big_endian ? __builtin_bswap32(word) : word);
    return (Wide){(uint64_t)(int64_t)value, (uint64_t)(int64_t)(value >> 31)};
  }
  if (width == 8 || width == 16) {
    uint64_t words[2];
    memcpy(words, in, (size_t)width);
    for (int64_t i = 0; i < width / 8 && is_big_endian; i++) words[i] = __builtin_bswap64(words[i]);
    const uint64_t low = width == 16 && is_big_endian ? words[1] : words[0];
    const uint64_t high = width == 8 ? (uint64_t)((int64_t)low >> 63) : is_big_endian ? words[0] : words[1];
    return (Wide){low, high};
  }
  for (int64_t i = 0; i < width; i++) bytes[i] = in[is_big_endian ? width - 1 - i : i];
  memset(bytes + width, bytes[width - 1] & 0x80 ? 0xFF : 0, (size_t)(DECIMAL_BYTES - width));
  memcpy(&wide.low, bytes, 8);
  memcpy(&wide.high, bytes + 8, 8);
  return wide;
}

#ifdef __SIZEOF_INT128__
typedef unsigned __int128 Whole;

/* Shifts a nonzero number until its highest bit is set; returns by how many bits. */
static int normalize(Whole *number) {
  uint64_t high = (uint64_t)(*number >> 64);
  int by = high ? __builtin_clzll(high) : 64 + __builtin_clzll((uint64_t)*number);
  *number <<= by;
  return by;
}

/* 10 ** `scale`: `fives` shifted right by `shift` bits and left by `scale` bits. */
typedef struct {
  Whole fives;
  int64_t shift, scale;
} Divisor;

static Divisor power_of_ten(int64_t scale) {
  Divisor divisor = {1, 0, scale};
  for (int64_t i = 0; i < scale; i++) divisor.fives *= 5;  /* 5 ** MOST_SCALE has 89 bits */
  divisor.shift = normalize(&divisor.fives);
  return divisor;
}

/* Returns the float64 nearest to an integer divided by a power of ten: one step of Knuth's long division, with 64 bits a
 * digit. 64 bits of the quotient, and whether there is a remainder, suffice for rounding. */
static double nearest(Wide wide, const Divisor *divisor) {
  int is_negative = (int)(wide.high >> 63);
  Whole left = (Whole)wide.high << 64 | wide.low, fives = divisor->fives;
  if (is_negative) left = -left;
  if (!left) return 0;
  int64_t exponent = divisor->shift - divisor->scale - normalize(&left) - 64;
  if (left >= fives) left >>= 1, exponent++;  /* the bit is 0: at most 2**127 was shifted */
  const uint64_t first = (uint64_t)(fives >> 64), second = (uint64_t)fives;
  uint64_t quotient = left >> 64 == first ? UINT64_MAX : (uint64_t)(left / first);
  Whole rest = left - (Whole)quotient * first;
  for (; !(rest >> 64) && (Whole)quotient * second > rest << 64; quotient--) rest += first;
  if (rest << 64 != (Whole)quotient * second) quotient |= 1;
  uint64_t bits = (uint64_t)(1023 + exponent) << 52;  /* a power of two: a normal float64 */
  double power;
  memcpy(&power, &bits, sizeof power);
  return is_negative ? -(double)quotient * power : (double)quotient * power;
}
#endif

FOR_EACH_TARGET static int nearest_all(
    const uint8_t *in, int64_t width, int is_big_endian, int64_t count, int64_t scale, double *out) {
  int64_t integers[AT_ONCE], are_long = scale > EXACT_POWERS;
#define READ(w, is_big) \
  for (int64_t i = 0; i < count; i++) { \
    Wide wide = wide_of(in + (w) * i, w, is_big); \
    integers[i] = (int64_t)wide.low; \
    are_long |= (int64_t)wide.low >> 63 != (int64_t)wide.high; \
    are_long |= wide.low + EXACT_INTEGERS > 2 * EXACT_INTEGERS; \
  }
  if (width == 4 && is_big_endian) READ(4, 1)
  else if (width == 8 && is_big_endian) READ(8, 1)
  else if (width == 16 && is_big_endian) READ(16, 1)
  else if (width == 4) READ(4, 0)
  else if (width == 8) READ(8, 0)
  else READ(width, is_big_endian)
  if (!are_long) {
    for (int64_t i = 0; i < count; i++) out[i] = exact_float(integers[i]) / powers[scale];
    return OK;
  }
#ifdef __SIZEOF_INT128__
  const Divisor divisor = power_of_ten(scale);
  for (int64_t i = 0; i < count; i++) out[i] = nearest(wide_of(in + width * i, width, is_big_endian), &divisor);
  return OK;
#else
  return OTHER;
#endif
}

int convert_decimals(
    const uint8_t *in, int64_t width, int is_big_endian, int64_t count, int64_t kind, uint8_t *out, int64_t out_width) {
  if (kind == WIDE_DECIMALS) {
    for (int64_t i = 0; i < count; i++) {
      Wide wide = wide_of(in + width * i, width, is_big_endian);
      memcpy(out + DECIMAL_BYTES * i, &wide, DECIMAL_BYTES);
    }
    return OK;
  }
  for (int64_t done = 0; done < count; done += AT_ONCE) {
    double values[AT_ONCE];
    float narrow[AT_ONCE];  /* a decimal of 38 digits is less than the largest float32 */
    int64_t some = count - done < AT_ONCE ? count - done : AT_ONCE;
    if (nearest_all(in + width * done, width, is_big_endian, some, kind - NEAREST_DECIMALS, values)) return OTHER;
    if (out_width == sizeof *narrow)
      for (int64_t i = 0; i < some; i++) narrow[i] = (float)values[i];
    const void *wanted = out_width == sizeof *narrow ? (const void *)narrow : values;
    memcpy(out + out_width * done, wanted, (size_t)(out_width * some));
  }
  return OK;
}
