#include "levels.h"

#include <string.h>

#include "../kernels.h"
#include "encodings.h"

enum { AT_ONCE = 256 };  /* levels unpacked at a time */

/* Counts bits that are set. */
FOR_EACH_TARGET static int64_t count_bits(const uint8_t *in, int64_t count) {
  int64_t found = 0, i = 0;
  uint64_t word;
  for (; i + 64 <= count; i += 64) {
    memcpy(&word, in + i / 8, sizeof word);
    found += __builtin_popcountll(word);
  }
  if (i == count) return found;
  word = 0;
  memcpy(&word, in + i / 8, (size_t)((count - i + 7) / 8));
  return found + __builtin_popcountll(word & ((UINT64_C(1) << (count - i)) - 1));
}

/* Counts levels of `bits` bits that are `level`; -1: one is higher. */
static int64_t count_levels(const uint8_t *in, int64_t count, int bits, uint32_t level) {
  uint32_t some[AT_ONCE];
  int64_t found = 0;
  for (int64_t first = 0; first < count; first += AT_ONCE) {
    int64_t few = count - first < AT_ONCE ? count - first : AT_ONCE;
    unpack(in + first / 8 * bits, some, (few + 7) / 8 * 8, bits);
    if (largest(some, few) > level) return -1;
    for (int64_t i = 0; i < few; i++) found += some[i] == level;
  }
  return found;
}

int64_t count_defined(const uint8_t *next, const uint8_t *stop, int64_t values, int level) {
  const int bits = level_bits(level);
  int64_t defined = 0;
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, bits, &run)) return -1;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count, found;
    if (!run.is_literal) found = run.repeated > (uint32_t)level ? -1 : run.repeated == (uint32_t)level ? some : 0;
    else found = level == 1 ? count_bits(run.values, some) : count_levels(run.values, some, bits, (uint32_t)level);
    if (found < 0) return -1;
    defined += found, values -= some;
  }
  return next == stop ? defined : -1;
}

/* Writes a byte for each bit, from bit `first` on. */
static void spread_bits(const uint8_t *in, int64_t first, int64_t count, uint8_t *out) {
  int64_t i = 0;
  for (; i < count && ((first + i) & 7); i++) out[i] = in[(first + i) >> 3] >> ((first + i) & 7) & 1;
  for (; i + 8 <= count; i += 8) {
    uint64_t bits = in[(first + i) >> 3] * UINT64_C(0x0101010101010101) & UINT64_C(0x8040201008040201);
    bits = (bits + UINT64_C(0x7F7F7F7F7F7F7F7F)) >> 7 & UINT64_C(0x0101010101010101);
    memcpy(out + i, &bits, 8);
  }
  for (; i < count; i++) out[i] = in[(first + i) >> 3] >> ((first + i) & 7) & 1;
}

int all_levels(const uint8_t *next, const uint8_t *stop, int64_t values, int level) {
  return count_defined(next, stop, values, level) == values;
}

int lists_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t position, int64_t size) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, 1, &run)) return 0;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count;
    if (run.is_literal) {
      for (int64_t i = 0; i < some; i++, position = position + 1 == size ? 0 : position + 1)
        if ((run.values[i >> 3] >> (i & 7) & 1) != (position != 0)) return 0;
    } else if (run.repeated) {
      if (position == 0 || some > size - position) return 0;
      position = (position + some) % size;
    } else {
      if (position != 0 || (some != 1 && size != 1)) return 0;
      position = (position + some) % size;
    }
    values -= some;
  }
  return next == stop;
}

static void spread_pairs(const uint8_t *in, int64_t first, int64_t count, uint8_t *out) {
  for (int64_t i = 0; i < count; i++) out[i] = in[(first + i) >> 2] >> 2 * ((first + i) & 3) & 3;
}

static void spread_triples(const uint8_t *in, int64_t first, int64_t count, uint8_t *out) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t at = 3 * (first + i) >> 3, bit = 3 * (first + i) & 7;
    const int next = bit > 5 ? in[at + 1] : 0;  /* a level that ends in its byte may be in the last one */
    out[i] = (uint8_t)((in[at] | next << 8) >> bit & 7);
  }
}

int begin_levels(Levels *levels, int64_t left, int bits) {
  if (levels->left) return OK;
  if (read_run(&levels->next, levels->stop, left, bits, &levels->run)) return OTHER;
  levels->done = 0;
  levels->left = (int64_t)levels->run.count;
  return OK;
}

int read_levels(Levels *levels, int64_t left, int64_t count, int bits, uint8_t *out) {
  while (count > 0) {
    if (begin_levels(levels, left, bits)) return OTHER;
    int64_t some = count < levels->left ? count : levels->left;
    if (levels->run.is_literal && bits == 1) spread_bits(levels->run.values, levels->done, some, out);
    else if (levels->run.is_literal && bits == 2) spread_pairs(levels->run.values, levels->done, some, out);
    else if (levels->run.is_literal) spread_triples(levels->run.values, levels->done, some, out);
    else memset(out, (int)levels->run.repeated, (size_t)some);
    levels->done += some, levels->left -= some, left -= some, count -= some, out += some;
  }
  return OK;
}

int read_defined(Levels *levels, int64_t left, int64_t count, int level, uint8_t *defined) {
  int code = read_levels(levels, left, count, level_bits(level), defined);
  for (int64_t i = 0; i < count && level > 1; i++) defined[i] = defined[i] == level;
  return code;
}
