#include "lists.h"

#include <string.h>

int64_t lists_begin_page(
    ListLevels *levels, const uint8_t *repetitions, const uint8_t *repetitions_end, const uint8_t *definitions,
    const uint8_t *definitions_end, int64_t count, int64_t rows) {
  int64_t continued = count_defined(repetitions, repetitions_end, count, 1);
  if (continued < 0) return -1;
  if (rows >= 0) {
    if (count - continued != rows) return -1;
    levels->is_open = 0;
  }
  levels->repetitions = (Levels){.next = repetitions, .stop = repetitions_end};
  levels->definitions = (Levels){.next = definitions, .stop = definitions_end};
  levels->packed = count;
  levels->at = levels->count = 0;
  return count_defined(definitions, definitions_end, count, levels->most);
}

int lists_are_values(ListLevels *levels) {
  Levels *definitions = &levels->definitions;
  if (begin_levels(definitions, levels->packed, level_bits(levels->most))) return 0;
  const Run *run = &definitions->run;
  return !run->is_literal && run->repeated == (uint32_t)levels->most && definitions->left == levels->packed;
}

/* Begins a row at each zero of `count` bits, from bit `first` on; `element`: the number of the first one. At most 8 bytes
 * behind the bits are read. Returns how many bits were taken. */
static int64_t begin_rows(
    const uint8_t *bits, int64_t first, int64_t count, ListRows *rows, int64_t element, int *is_over) {
  for (int64_t i = 0, some; i < count; i += some) {
    const int64_t skipped = (first + i) & 7;
    some = count - i < 64 - skipped ? count - i : 64 - skipped;
    uint64_t word;
    memcpy(&word, bits + (first + i) / 8, sizeof word);
    for (uint64_t begins = ~word >> skipped & UINT64_MAX >> (64 - some); begins; begins &= begins - 1) {
      const int64_t at = i + __builtin_ctzll(begins);
      if (rows->rows_done == rows->rows) {
        *is_over = 1;
        return at;
      }
      rows->offsets[rows->rows_done] = element + at;
      rows->are_lists[rows->rows_done++] = 1;
    }
  }
  return count;
}

int lists_take_runs(ListLevels *levels, ListRows *rows, int64_t *elements, int *is_over) {
  enum { ZEROS = 64 };
  static const uint8_t zeros[ZEROS / 8];  /* levels of rows of one value */
  Levels *repetitions = &levels->repetitions, *definitions = &levels->definitions;
  *elements = 0, *is_over = 0;
  while (levels->packed && !*is_over) {
    if (begin_levels(repetitions, levels->packed, 1)) return OTHER;
    if (begin_levels(definitions, levels->packed, level_bits(levels->most))) return OTHER;
    if (definitions->run.is_literal || definitions->run.repeated != (uint32_t)levels->most) break;
    const Run *run = &repetitions->run;
    int64_t some = rows->capacity - rows->elements - *elements;
    if (some > levels->packed) some = levels->packed;
    if (some > repetitions->left) some = repetitions->left;
    if (some > definitions->left) some = definitions->left;
    if (!some) break;
    if (!run->is_literal && run->repeated) {
      if (!levels->is_open) return OTHER;
    } else {
      const uint8_t *bits = run->is_literal ? run->values : zeros;
      const int64_t first = run->is_literal ? repetitions->done : 0;
      if (!run->is_literal && some > ZEROS) some = ZEROS;
      if (!levels->is_open && bits[first >> 3] >> (first & 7) & 1) return OTHER;
      some = begin_rows(bits, first, some, rows, rows->elements + *elements, is_over);
    }
    if (some) levels->is_open = 1;
    repetitions->done += some, repetitions->left -= some;
    definitions->done += some, definitions->left -= some;
    levels->packed -= some, *elements += some;
  }
  return OK;
}

int lists_unpack(ListLevels *levels) {
  int64_t count = levels->packed < LIST_BLOCK ? levels->packed : LIST_BLOCK;
  if (read_levels(&levels->repetitions, levels->packed, count, 1, levels->repeated)) return OTHER;
  if (read_levels(&levels->definitions, levels->packed, count, level_bits(levels->most), levels->defined)) return OTHER;
  levels->packed -= count;
  levels->at = 0, levels->count = count;
  return OK;
}

FOR_EACH_TARGET static int are_all(const uint8_t *levels, int64_t count, uint8_t level) {
  uint8_t other = 0;
  for (int64_t i = 0; i < count; i++) other |= levels[i] ^ level;
  return other == 0;
}

/* As `lists_take`, if all levels are values. Returns their number. */
static int64_t take_values(ListLevels *levels, ListRows *rows, int *is_over) {
  const uint64_t ones = UINT64_C(0x0101010101010101);
  const uint8_t *repeated = levels->repeated + levels->at;
  int64_t count = levels->count - levels->at;
  for (int64_t i = 0; i < count; i += 8) {
    while (i % 64 == 0 && count - i >= 64 && are_all(repeated + i, 64, 1)) i += 64;
    int64_t some = count - i < 8 ? count - i : 8;
    uint64_t word = ones;
    memcpy(&word, repeated + i, (size_t)some);
    for (uint64_t begins = ~word & ones; begins; begins &= begins - 1) {
      int64_t at = i + __builtin_ctzll(begins) / 8;
      if (rows->rows_done == rows->rows) {
        *is_over = 1;
        return at;
      }
      rows->offsets[rows->rows_done] = rows->elements + at;
      rows->are_lists[rows->rows_done++] = 1;
    }
  }
  return count;
}

int lists_take(
    ListLevels *levels, ListRows *rows, uint8_t *flags, int64_t *elements, int64_t *values, int *is_over) {
  const int of_element = levels->of_element, most = levels->most;
  int64_t found = 0, there = 0, at = levels->at;
  *is_over = 0;
  if (levels->repeated[at] && !levels->is_open) return OTHER;
  if (are_all(levels->defined + at, levels->count - at, (uint8_t)most)) {
    *elements = *values = take_values(levels, rows, is_over);
    if (*elements) levels->is_open = 1;
    levels->at += *elements;
    return OK;
  }
  for (; at < levels->count; at++) {
    int defined = levels->defined[at];
    if (!levels->repeated[at]) {
      if (rows->rows_done == rows->rows) {
        *is_over = 1;
        break;
      }
      int is_list = defined >= of_element - 1;
      rows->offsets[rows->rows_done] = rows->elements + found;
      rows->are_lists[rows->rows_done++] = (uint8_t)is_list;
      rows->null_rows += !is_list;
      levels->is_open = defined >= of_element;
    } else if (!levels->is_open || defined < of_element) {
      return OTHER;
    }
    if (defined >= of_element) {
      flags[found++] = defined == most;
      there += defined == most;
    }
  }
  levels->at = at;
  *elements = found, *values = there;
  return OK;
}
