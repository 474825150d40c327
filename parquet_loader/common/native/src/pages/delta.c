#include "delta.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../kernels.h"
#include "runs.h"
#include "../thrift.h"

enum { LONGEST_BLOCK = 1 << 20 };

/* Refuses numbers with more bytes than a value of `width` bytes can need, because readers interpret them differently. */
static void check_length(Thrift *t, const uint8_t *begin, int64_t width) {
  if (t->next - begin > (width == 4 ? 5 : 10) || (t->next - begin == 10 && t->next[-1] > 1)) t->is_wrong = 1;
}

static uint64_t length(Thrift *t) {
  const uint8_t *begin = t->next;
  uint64_t value = thrift_varint(t);
  check_length(t, begin, 4);
  return value;
}

/* Reads a signed number of `width` bytes. */
static int64_t signed_number(Thrift *t, int64_t width) {
  const uint8_t *begin = t->next;
  int64_t value = thrift_int(t);
  check_length(t, begin, width);
  if (width == 4 && (value < INT32_MIN || value > INT32_MAX)) t->is_wrong = 1;
  return value;
}

int delta_begin_within(
    Delta *delta, const uint8_t *next, const uint8_t *stop, int64_t values, int64_t width, const uint8_t **end) {
  Thrift t = {next, stop, 0, 0};
  uint64_t block_values = length(&t), minis = length(&t), total = length(&t);
  int64_t first = signed_number(&t, width);
  if (!is_going(&t) || total != (uint64_t)values) return OTHER;
  if (block_values == 0 || block_values > LONGEST_BLOCK || block_values % 128) return OTHER;
  if (minis == 0 || block_values % minis || block_values / minis % DELTA_GROUP) return OTHER;
  *delta = (Delta){.next = t.next, .stop = stop, .left = values, .last = (uint64_t)first};
  delta->block_values = (int64_t)block_values, delta->minis = (int64_t)minis;
  delta->mini_values = (int64_t)(block_values / minis);
  delta->mini = delta->minis;
  delta->pending[DELTA_GROUP - 1] = (uint64_t)first;
  delta->pending_left = values > 0;
  for (int64_t left = values - 1; left > 0;) {
    signed_number(&t, width);
    const uint8_t *widths = t.next;
    thrift_skip_bytes(&t, minis);
    if (!is_going(&t)) return OTHER;
    for (uint64_t mini = 0; mini < minis && left > 0; mini++, left -= delta->mini_values) {
      if (widths[mini] > 8 * width) return OTHER;
      thrift_skip_bytes(&t, (uint64_t)delta->mini_values / 8 * widths[mini]);
      if (!is_going(&t)) return OTHER;
    }
  }
  *end = t.next;
  return OK;
}

int delta_begin(Delta *delta, const uint8_t *next, const uint8_t *stop, int64_t values, int64_t width) {
  const uint8_t *end;
  return delta_begin_within(delta, next, stop, values, width, &end) || end != stop ? OTHER : OK;
}

/* Unpacks a group of more than 32 bits a value. */
static void unpack_wide(const uint8_t *in, int bits, uint64_t *out) {
  for (int64_t i = 0; i < DELTA_GROUP; i++) {
    int64_t at = i * bits;
    uint64_t word;
    memcpy(&word, in + (at >> 3), 8);
    word >>= at & 7;
    if ((at & 7) + bits > 64) word |= (uint64_t)in[(at >> 3) + 8] << (64 - (at & 7));
    out[i] = bits == 64 ? word : word & ((UINT64_C(1) << bits) - 1);
  }
}

typedef uint64_t __attribute__((aligned(1), may_alias)) Word;  /* at any address */
typedef uint32_t __attribute__((aligned(1), may_alias)) HalfWord;

/* Adds up the differences of a group, four at a time, so that few additions depend on the previous one. Returns the last
 * sum. */
#define ADD_UP(name, Sum, Out, Difference) \
  static Sum name(const Difference *in, Sum least, Sum last, Out *out) { \
    for (int i = 0; i < DELTA_GROUP; i += 4) { \
      const Sum a = (Sum)in[i] + least, b = (Sum)in[i + 1] + least, c = (Sum)in[i + 2] + least, d = (Sum)in[i + 3] + least; \
      const Sum two = a + b; \
      out[i] = last + a; \
      out[i + 1] = last + two; \
      out[i + 2] = last + (two + c); \
      out[i + 3] = last = last + (two + (c + d)); \
    } \
    return last; \
  }
ADD_UP(add_up, uint64_t, Word, uint32_t)
ADD_UP(add_up_wide, uint64_t, Word, uint64_t)
#ifdef __SSE2__
static uint32_t add_up_narrow(const uint32_t *in, uint32_t least, uint32_t last, HalfWord *out) {
  const __m128i leasts = _mm_set1_epi32((int)least);
  __m128i before = _mm_set1_epi32((int)last);
  for (int i = 0; i < DELTA_GROUP; i += 4) {
    __m128i four = _mm_add_epi32(_mm_loadu_si128((const __m128i *)(in + i)), leasts);
    four = _mm_add_epi32(four, _mm_slli_si128(four, 4));
    four = _mm_add_epi32(four, _mm_slli_si128(four, 8));
    four = _mm_add_epi32(four, before);
    _mm_storeu_si128((__m128i *)(out + i), four);
    before = _mm_shuffle_epi32(four, 0xFF);
  }
  return (uint32_t)_mm_cvtsi128_si32(before);
}
#else
ADD_UP(add_up_narrow, uint32_t, HalfWord, uint32_t)
#endif

/* Writes the next group, of integers of 4 or 8 bytes. The last group of the page may unpack padding. */
static int next_group(Delta *delta, int64_t width, uint8_t *out) {
  if (delta->mini_left == 0) {
    if (delta->mini == delta->minis) {
      Thrift t = {delta->next, delta->stop, 0, 0};
      delta->least = (uint64_t)thrift_int(&t);
      delta->widths = t.next;
      thrift_skip_bytes(&t, (uint64_t)delta->minis);
      if (!is_going(&t)) return OTHER;
      delta->group = delta->next = t.next;
      delta->mini = 0;
    }
    delta->bits = delta->widths[delta->mini++];
    delta->mini_left = delta->mini_values;
    int64_t nbytes = delta->mini_values / 8 * delta->bits;
    if (delta->bits > 64 || nbytes > delta->stop - delta->next) return OTHER;
    delta->group = delta->next;
    delta->next += nbytes;
  }
  if (delta->bits <= 32) {
    uint32_t few[DELTA_GROUP];
    unpack(delta->group, few, DELTA_GROUP, delta->bits);
    if (width == 4) delta->last = add_up_narrow(few, (uint32_t)delta->least, (uint32_t)delta->last, (HalfWord *)out);
    else delta->last = add_up(few, delta->least, delta->last, (Word *)out);
  } else {
    uint64_t wide[DELTA_GROUP];
    if (width != 8) return OTHER;
    unpack_wide(delta->group, delta->bits, wide);
    delta->last = add_up_wide(wide, delta->least, delta->last, (Word *)out);
  }
  delta->group += DELTA_GROUP / 8 * delta->bits;
  delta->mini_left -= DELTA_GROUP;
  return OK;
}

int delta_read(Delta *delta, int64_t count, int64_t width, uint8_t *out) {
  if (count > delta->left) return OTHER;
  while (count > 0) {
    int64_t some = delta->pending_left;
    if (some == 0 && out && count >= DELTA_GROUP && (width == 4 || width == 8)) {
      if (next_group(delta, width, out)) return OTHER;
      delta->left -= DELTA_GROUP, count -= DELTA_GROUP, out += DELTA_GROUP * width;
      continue;
    }
    if (some == 0) {
      if (next_group(delta, 8, (uint8_t *)delta->pending)) return OTHER;
      delta->pending_left = some = DELTA_GROUP;
    }
    const uint64_t *from = delta->pending + DELTA_GROUP - some;
    if (some > count) some = count;
#define LOW_BYTES(w) for (int64_t i = 0; i < some; i++) memcpy(out + (w) * i, from + i, (size_t)(w))
    if (out) {
      FOR_WIDTH(width, LOW_BYTES)
      out += some * width;
    }
    delta->pending_left -= some, delta->left -= some, count -= some;
  }
  return OK;
}
