#include "levels.h"

#include <string.h>

int64_t count_defined(const uint8_t *next, const uint8_t *stop, int64_t values) {
  int64_t defined = 0;
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, 1, &run)) return -1;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count;
    if (!run.is_literal) {
      defined += run.repeated ? some : 0;
    } else {
      for (int64_t i = 0; i < some; i += 64) {
        int64_t bits = some - i < 64 ? some - i : 64;
        uint64_t word = 0;
        memcpy(&word, run.values + i / 8, (size_t)((bits + 7) / 8));
        if (bits < 64) word &= (UINT64_C(1) << bits) - 1;
        defined += __builtin_popcountll(word);
      }
    }
    values -= some;
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
  uint32_t found[256];
  int bits = level < 2 ? 1 : level < 4 ? 2 : 3;
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, bits, &run)) return 0;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count;
    if (!run.is_literal && run.repeated != (uint32_t)level) return 0;
    for (int64_t first = 0; run.is_literal && first < some; first += 256) {
      int64_t count = some - first < 256 ? some - first : 256;
      unpack(run.values + first / 8 * bits, found, (count + 7) / 8 * 8, bits);
      for (int64_t i = 0; i < count; i++)
        if (found[i] != (uint32_t)level) return 0;
    }
    values -= some;
  }
  return next == stop;
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

int begin_levels(Levels *levels, int64_t left, int bits) {
  if (levels->left) return OK;
  if (read_run(&levels->next, levels->stop, left, bits, &levels->run)) return OTHER;
  levels->done = 0;
  levels->left = (int64_t)levels->run.count;
  return OK;
}

int read_levels(Levels *levels, int64_t left, int64_t count, int bits, uint8_t *defined) {
  while (count > 0) {
    if (begin_levels(levels, left, bits)) return OTHER;
    int64_t some = count < levels->left ? count : levels->left;
    if (levels->run.is_literal && bits == 1) spread_bits(levels->run.values, levels->done, some, defined);
    else if (levels->run.is_literal) spread_pairs(levels->run.values, levels->done, some, defined);
    else memset(defined, (int)levels->run.repeated, (size_t)some);
    levels->done += some, levels->left -= some, left -= some, count -= some, defined += some;
  }
  return OK;
}
