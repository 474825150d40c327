/* Byte arrays: views of values in their pages, and copies of them. */
#include "byte_arrays.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../kernels.h"
#include "../staging.h"

#define UTF8_BLOCK 64
#define HIGH_BITS UINT64_C(0x8080808080808080)

/* Whether UTF8_BLOCK bytes are ASCII. */
static inline int is_block_ascii(const uint8_t *block) {
#ifdef __SSE2__
  const __m128i *in = (const __m128i *)block;
  const __m128i first = _mm_or_si128(_mm_loadu_si128(in), _mm_loadu_si128(in + 1));
  const __m128i then = _mm_or_si128(_mm_loadu_si128(in + 2), _mm_loadu_si128(in + 3));
  return !_mm_movemask_epi8(_mm_or_si128(first, then));
#else
  uint64_t words[UTF8_BLOCK / 8], any = 0;
  memcpy(words, block, sizeof words);
  for (int i = 0; i < UTF8_BLOCK / 8; i++) any |= words[i];
  return !(any & HIGH_BITS);
#endif
}

/* Whether all bytes are ASCII; `checked` gets the length of a prefix that is. */
static int is_ascii(const uint8_t *bytes, int64_t nbytes, int64_t *checked) {
  int64_t at = 0;
  while (at + UTF8_BLOCK <= nbytes && is_block_ascii(bytes + at)) at += UTF8_BLOCK;
  *checked = at;
  if (at + UTF8_BLOCK <= nbytes) return 0;
  uint64_t any = 0, word;
  for (; at + 8 <= nbytes; at += 8) {
    memcpy(&word, bytes + at, 8);
    any |= word;
  }
  memcpy(&word, bytes + at, 8);  /* bytes beyond the value are shifted out */
  if (at < nbytes) any |= word << 8 * (8 - (nbytes - at));
  return !(any & HIGH_BITS);
}

/* Whether UTF8_BLOCK bytes, which follow the first three bytes of `block`, violate UTF-8. */
FOR_EACH_TARGET static int is_block_wrong(const uint8_t *block) {
  uint8_t wrong = 0;
  for (int i = 0; i < UTF8_BLOCK; i++) {
    uint8_t third = block[i], second = block[i + 1], first = block[i + 2], byte = block[i + 3];
    uint8_t continues = (byte & 0xC0) == 0x80, must = (first >= 0xC0) | (second >= 0xE0) | (third >= 0xF0);
    wrong |= continues ^ must;
    wrong |= (byte == 0xC0) | (byte == 0xC1) | (byte >= 0xF5);
    wrong |= ((first == 0xE0) & (byte < 0xA0)) | ((first == 0xED) & (byte > 0x9F));
    wrong |= ((first == 0xF0) & (byte < 0x90)) | ((first == 0xF4) & (byte > 0x8F));
  }
  return wrong;
}

/* Whether UTF8_BLOCK bytes, which follow the first three bytes of `block`, continue UTF-8. */
static inline int continues_utf8(const uint8_t *block) {
  uint64_t before;  /* includes the three bytes */
  memcpy(&before, block, sizeof before);
  return (is_block_ascii(block + 3) && !(before & HIGH_BITS)) || !is_block_wrong(block);
}

/* Whether bytes are UTF-8 without surrogates; 8 bytes beyond them must be readable. */
static int is_utf8(const uint8_t *bytes, int64_t nbytes) {
  int64_t at;
  if (is_ascii(bytes, nbytes, &at)) return 1;
  if (nbytes < UTF8_BLOCK + 3 || at == 0) {
    /* Zeros before and behind the value show that its first and its last character are whole. */
    uint8_t copied[3 + 2 * UTF8_BLOCK] = {0};
    memcpy(copied + 3, bytes, (size_t)(nbytes < UTF8_BLOCK + 3 ? nbytes : UTF8_BLOCK));
    if (is_block_wrong(copied)) return 0;
    if (nbytes < UTF8_BLOCK + 3) return nbytes < UTF8_BLOCK || !is_block_wrong(copied + UTF8_BLOCK);
    at = UTF8_BLOCK;
  }
  for (; at + UTF8_BLOCK <= nbytes; at += UTF8_BLOCK)
    if (!continues_utf8(bytes + at - 3)) return 0;
  const uint8_t *last = bytes + nbytes - 3;
  if ((last[0] >= 0xF0) | (last[1] >= 0xE0) | (last[2] >= 0xC0)) return 0;
  return continues_utf8(last - UTF8_BLOCK);
}

int is_all_ascii(const uint8_t *bytes, int64_t nbytes) {
  int64_t checked;
  return is_ascii(bytes, nbytes, &checked);
}

int plain_views(const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views) {
  const uint8_t *next = *at;
  for (int64_t i = 0; i < values; i++) {
    uint32_t length;
    if (stop - next < 4) return OTHER;
    memcpy(&length, next, 4);
    next += 4;
    if (length > (uint64_t)(stop - next)) return OTHER;
    if (views) {
      views[i] = (View){next, length};
      if (is_text && !is_utf8(next, length)) return OTHER;
    }
    next += length;
  }
  *at = next;
  return OK;
}

int delta_length_views(
    Delta *lengths_of, const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views) {
  const uint8_t *next = *at;
  int32_t lengths[DELTA_GROUP];
  for (int64_t i = 0; i < values; i += DELTA_GROUP) {
    int64_t some = values - i < DELTA_GROUP ? values - i : DELTA_GROUP;
    if (delta_read(lengths_of, some, sizeof *lengths, (uint8_t *)lengths)) return OTHER;
    for (int64_t j = 0; j < some; j++) {
      if (lengths[j] < 0 || lengths[j] > stop - next) return OTHER;
      if (views) {
        views[i + j] = (View){next, lengths[j]};
        if (is_text && !is_utf8(next, lengths[j])) return OTHER;
      }
      next += lengths[j];
    }
  }
  *at = next;
  return OK;
}

int64_t delta_views(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t most_bytes, View *views) {
  int32_t prefixes[DELTA_GROUP];
  int64_t before = 0, total = 0;
  Delta delta, lengths;
  if (delta_begin_within(&delta, next, stop, values, sizeof *prefixes, &next)) return -1;
  if (delta_begin_within(&lengths, next, stop, values, sizeof *prefixes, &next)) return -1;
  if (delta_length_views(&lengths, &next, stop, values, 0, views) || next != stop) return -1;
  for (int64_t i = 0; i < values; i += DELTA_GROUP) {
    int64_t some = values - i < DELTA_GROUP ? values - i : DELTA_GROUP;
    if (delta_read(&delta, some, sizeof *prefixes, (uint8_t *)prefixes)) return -1;
    for (int64_t j = 0; j < some; j++) {
      View *view = &views[i + j];
      if (prefixes[j] < 0 || prefixes[j] > before) return -1;
      before = prefixes[j] + view->nbytes;
      view->nbytes |= (int64_t)prefixes[j] << 32;
      if ((total += before) > most_bytes) return -1;
    }
  }
  return total;
}

#define SHORT_PREFIX 48  /* bytes copied at once; twice that is at most SLACK */

int join_delta_views(int64_t values, int is_text, uint8_t *out, View *views) {
  const uint8_t *first = out, *before = out;
  for (int64_t i = 0; i < values; i++) {
    int64_t prefix = views[i].nbytes >> 32, suffix = views[i].nbytes & INT32_MAX;
    uint8_t *begin = out;
    if (prefix <= SHORT_PREFIX && suffix <= SHORT_PREFIX) {
      /* Copies too much, within SLACK: the next value overwrites the excess. The bytes of the prefix lie before `out`. */
      uint8_t first[SHORT_PREFIX], then[SHORT_PREFIX];
      memcpy(first, before, SHORT_PREFIX);
      memcpy(out, first, SHORT_PREFIX);
      memcpy(then, views[i].bytes, SHORT_PREFIX);
      memcpy(out + prefix, then, SHORT_PREFIX);
    } else {
      memcpy(out, before, (size_t)prefix);
      memcpy(out + prefix, views[i].bytes, (size_t)suffix);
    }
    out += prefix + suffix;
    views[i] = (View){begin, prefix + suffix};
    before = begin;
  }
  /* After all values are written, because the check reads bytes beyond a value. */
  if (is_text && is_all_ascii(first, out - first)) return OK;
  for (int64_t i = 0; is_text && i < values; i++)
    if (!is_utf8(views[i].bytes, views[i].nbytes)) return OTHER;
  return OK;
}

void number_views(int64_t count, View *views) {
  for (int64_t i = 0; i < count; i++) views[i].nbytes |= (i + 1) << 32;
}

/* Counts the views of entries of a dictionary, their bytes, and the bytes of all views. */
FOR_EACH_TARGET static void sum_views(const View *views, int64_t rows, int64_t *entries, int64_t *in_entries, int64_t *all) {
  int64_t count = 0, own = 0, every = 0;
  for (int64_t i = 0; i < rows; i++) {
    const int64_t nbytes = views[i].nbytes & INT32_MAX, is_entry = views[i].nbytes >> 32 != 0;
    count += is_entry, own += is_entry ? nbytes : 0, every += nbytes;
  }
  *entries = count, *in_entries = own, *all = every;
}

/* Writes the numbers of entries, counted from `first`; returns whether all views are of entries. */
FOR_EACH_TARGET static int number_entries(const View *views, int64_t rows, uint32_t first, uint32_t *numbers) {
  int64_t others = 0;
  for (int64_t i = 0; i < rows; i++) {
    const uint32_t entry = (uint32_t)((uint64_t)views[i].nbytes >> 32);
    numbers[i] = first + entry - 1;
    others += entry == 0;
  }
  return others == 0;
}

static int is_staged(const Staging *staging, const View *view) {
  const int64_t before = (int64_t)(uintptr_t)view->bytes - staging->address;
  return before >= 0 && before < staging->capacity;
}

/* Measures columns of `rows` views. Each of `count` lines has four numbers: the address of the views, that of a mask or 0,
 * that of the bytes of a null, and that of the staging buffer or 0. The mask gets 1 for each row that is not null. Writes six
 * numbers a column: how many views are of a dictionary's entries, and their bytes; the same of views of the staging buffer,
 * and of all others. */
EXPORT void views_measure(const int64_t *lines, int64_t count, int64_t rows, int64_t *found) {
  for (int64_t c = 0; c < count; c++, lines += 4, found += 6) {
    const View *views = ADDRESS(const View, lines[0]);
    const uint8_t *null = ADDRESS(const uint8_t, lines[2]);
    uint8_t *mask = ADDRESS(uint8_t, lines[1]);
    int64_t entries, in_entries, all;
    sum_views(views, rows, &entries, &in_entries, &all);
    if (mask) for (int64_t i = 0; i < rows; i++) mask[i] = views[i].bytes != null;
    const Staging *staging = ADDRESS(const Staging, lines[3]);
    int64_t staged = 0, in_staged = 0;
    for (int64_t i = 0; staging && i < rows; i++) {
      if (!is_staged(staging, &views[i])) continue;
      staged++, in_staged += views[i].nbytes;
    }
    found[0] = entries, found[1] = in_entries, found[2] = staged, found[3] = in_staged;
    found[4] = rows - entries - staged, found[5] = all - in_entries - in_staged;
  }
}

static uint8_t *put(const View *view, uint8_t *out, const uint8_t *stop) {
  const int64_t nbytes = view->nbytes & INT32_MAX;
  if (nbytes <= SHORT_ROW && stop - out >= SHORT_ROW) copy_short(view->bytes, nbytes, out);
  else if (nbytes) memcpy(out, view->bytes, (size_t)nbytes);
  return out + nbytes;
}

/* Copies values to `out`, without gaps, up to `stop`: the `count` entries of a dictionary, then the values of `views` that
 * are not entries; if `count` is 0, the values of all views. Writes the end of each copied value to `ends`, counted from
 * `begin` at `out`, and the number of each view's value to `numbers`, counted from `first`.
 *
 * With `staging`, values that lie in this buffer, whose first byte counts as 0, are not copied. Then values that are not
 * entries have two numbers: `ends` gets the begin and the end of each, and the second number is that of the value. */
static void stage(
    const View *views, int64_t rows, const View *dictionary, int64_t count, uint8_t *out, const uint8_t *stop,
    int64_t begin, int64_t *ends, uint32_t first, uint32_t *numbers, const Staging *staging) {
  const uint8_t *start = out - begin;
  uint32_t number = first;
  for (int64_t i = 0; i < count; i++, number++) {
    out = put(&dictionary[i], out, stop);
    *ends++ = out - start;
  }
  if (!count && !staging) {
    for (int64_t i = 0; i < rows; i++) numbers[i] = first + (uint32_t)i;
    for (int64_t i = 0; i < rows; i++) {
      out = put(&views[i], out, stop);
      ends[i] = out - start;
    }
    return;
  }
  if (count && number_entries(views, rows, first, numbers)) return;
  for (int64_t i = 0; i < rows; i++) {
    if (count && views[i].nbytes >> 32) continue;
    if (!staging) {
      out = put(&views[i], out, stop);
      *ends++ = out - start;
    } else if (is_staged(staging, &views[i])) {
      *ends++ = views[i].bytes - ADDRESS(const uint8_t, staging->address);
      *ends = ends[-1] + views[i].nbytes;
      ends++, number++;
    } else {
      *ends++ = out - start;
      out = put(&views[i], out, stop);
      *ends++ = out - start;
      number++;
    }
    numbers[i] = number++;
  }
}

/* Stages columns of `rows` views. Each of `count` lines has ten numbers: the other arguments of `stage`, in its order. So
 * Python releases its lock once for several columns. */
EXPORT void views_stage(const int64_t *lines, int64_t count, int64_t rows) {
  for (int64_t c = 0; c < count; c++, lines += 10) {
    stage(
        ADDRESS(const View, lines[0]), rows, ADDRESS(const View, lines[1]), lines[2], ADDRESS(uint8_t, lines[3]),
        ADDRESS(const uint8_t, lines[4]), lines[5], ADDRESS(int64_t, lines[6]), (uint32_t)lines[7],
        ADDRESS(uint32_t, lines[8]), ADDRESS(const Staging, lines[9]));
  }
}
