/* Packs documents into bins of `length` tokens, and writes the rows of a batch of tokens.
 *
 * Method best-fit-1, as in `plan/packing.py`: the pieces of documents are placed by size, the largest first, and pieces
 * of equal size in the order of documents. A piece goes into the bin with the least sufficient free space; of several
 * such bins, into the one that was filled last.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum { SPLIT = 0, CROP = 1, DROP = 2 };  /* as in `plan/packing.py` */
enum { LEVELS = 6 };                     /* enough for any size of 31 bits */

/* A set of sizes from 1 to `length`. Level 0 has a bit for each size, each further level a bit for each word of the level
 * below. */
typedef struct {
  uint64_t *level[LEVELS];
  int levels;
} Sizes;

static uint64_t *open_sizes(Sizes *sizes, int64_t length) {
  int64_t words[LEVELS], all = 0, bits = length + 1;
  sizes->levels = 0;
  do {
    bits = (bits + 63) >> 6;
    all += words[sizes->levels++] = bits + 1;  /* a search may look one word further */
  } while (bits > 1);
  uint64_t *memory = calloc((size_t)all, sizeof *memory), *at = memory;
  if (memory) for (int i = 0; i < sizes->levels; at += words[i++]) sizes->level[i] = at;
  return memory;
}

INLINE void add_size(Sizes *sizes, int64_t size) {
  for (int i = 0; i < sizes->levels; i++, size >>= 6) sizes->level[i][size >> 6] |= UINT64_C(1) << (size & 63);
}

INLINE void remove_size(Sizes *sizes, int64_t size) {
  for (int i = 0; i < sizes->levels; i++, size >>= 6)
    if (sizes->level[i][size >> 6] &= ~(UINT64_C(1) << (size & 63))) return;
}

/* Returns the smallest member from `size` on, or 0. */
INLINE int64_t find_size(const Sizes *sizes, int64_t size) {
  for (int i = 0; i < sizes->levels; i++) {
    uint64_t found = sizes->level[i][size >> 6] & (~UINT64_C(0) << (size & 63));
    if (found) {
      size = (size & ~INT64_C(63)) | __builtin_ctzll(found);
      while (i--) size = size << 6 | __builtin_ctzll(sizes->level[i][size]);
      return size;
    }
    size = (size >> 6) + 1;
  }
  return 0;
}

/* Returns the number of full pieces of a document, and the tokens of a further piece or 0. */
INLINE int64_t pieces_of(int64_t tokens, int64_t length, int overflow, int64_t *rest) {
  *rest = tokens;
  if (tokens < length) return 0;
  *rest = overflow == SPLIT ? tokens % length : 0;
  return overflow == SPLIT ? tokens / length : overflow == CROP || tokens == length;
}

/* Counts the bins of best-fit-1 without placing pieces, because bins of equal free space and pieces of equal size are
 * interchangeable. */
EXPORT int packing_count(const int32_t *tokens, int64_t count, int64_t length, int overflow, int64_t *bins) {
  Sizes open;
  uint64_t *memory = open_sizes(&open, length);
  int64_t *pieces = calloc((size_t)(2 * length + 2), sizeof *pieces), *with = pieces + length + 1, rest;
  if (!memory || !pieces) {
    free(memory);
    free(pieces);
    return NO_MEMORY;
  }
  for (int64_t i = 0; i < count; i++) {
    pieces[length] += pieces_of(tokens[i], length, overflow, &rest);
    pieces[rest]++;
  }
  *bins = pieces[length];
  for (int64_t size = length - 1; size > 0; size--) {
    for (int64_t left = pieces[size]; left;) {
      int64_t space = find_size(&open, size), is_new = !space;
      if (is_new) space = length;
      int64_t each = space / size, some = left / each;
      if (!is_new && some > with[space]) some = with[space];
      if (!some) some = 1, each = left;
      left -= some * each;
      if (is_new) *bins += some;
      else if (!(with[space] -= some)) remove_size(&open, space);
      space -= each * size;
      if (space && !with[space]) add_size(&open, space);
      if (space) with[space] += some;
    }
  }
  free(memory);
  free(pieces);
  return OK;
}

typedef struct {
  Sizes open;
  int32_t *last, *before;  /* stacks of bins by free space: the last bin of each, and the bin before each bin */
} Bins;

INLINE void put_bin(Bins *bins, int64_t space, int32_t bin) {
  if (!space) return;
  if (bins->last[space] < 0) add_size(&bins->open, space);
  bins->before[bin] = bins->last[space];
  bins->last[space] = bin;
}

INLINE int32_t take_bin(Bins *bins, int64_t space) {
  int32_t bin = bins->last[space];
  if ((bins->last[space] = bins->before[bin]) < 0) remove_size(&bins->open, space);
  return bin;
}

/* Places the pieces. `count_pieces`: the pieces of all documents. Writes for each piece its document, first token and size,
 * in the order of bins, within a bin in the order of documents. `begins` gets the number of pieces before each bin, and of
 * all pieces. Bins are numbered by their first piece. */
EXPORT int packing_place(
    const int32_t *tokens, int64_t count, int64_t length, int overflow, int64_t count_pieces, int32_t *document,
    int32_t *first, int32_t *size_of, int64_t *begins, int64_t *bins) {
  Bins open;
  uint64_t *memory = open_sizes(&open.open, length);
  size_t pieces = (size_t)count_pieces;
  /* for each piece: document, first token, size, index in the order of sizes, bin; for each bin: the one before, number */
  int32_t *of_piece = malloc((7 * pieces + 1) * sizeof *of_piece), *of_size = calloc((size_t)(2 * length + 4), sizeof *of_size);
  if (!memory || !of_piece || !of_size) {
    free(memory);
    free(of_piece);
    free(of_size);
    return NO_MEMORY;
  }
  int32_t *from = of_piece, *at = from + pieces, *size = at + pieces, *sorted = size + pieces, *bin_of = sorted + pieces;
  int32_t *number = bin_of + pieces + pieces, *after = of_size, made = 0, numbered = 0;
  open.before = bin_of + pieces;
  open.last = of_size + length + 2;
  memset(open.last, 255, (size_t)(length + 1) * sizeof *open.last);
  int32_t piece = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t rest, full = pieces_of(tokens[i], length, overflow, &rest);
    for (int64_t k = 0; k < full + (rest > 0); k++, piece++) {
      from[piece] = (int32_t)i, at[piece] = (int32_t)(k * length), size[piece] = (int32_t)(k < full ? length : rest);
      after[size[piece] + 1]++;
    }
  }
  for (int64_t s = 1; s <= length; s++) after[s + 1] += after[s];
  for (int32_t i = 0; i < piece; i++) sorted[after[size[i]]++] = i;  /* afterwards, `after` has the end of each size */
  for (int64_t s = length; s > 0; s--) {
    for (int32_t next = s > 1 ? after[s - 1] : 0, end = after[s]; next < end;) {
      int64_t space = find_size(&open.open, s);
      int32_t bin = space ? take_bin(&open, space) : made++;
      if (!space) space = length;
      for (; next < end && space >= s; space -= s) bin_of[sorted[next++]] = bin;
      put_bin(&open, space, bin);
    }
  }
  memset(number, 255, (size_t)made * sizeof *number);
  memset(begins, 0, (size_t)(made + 1) * sizeof *begins);
  for (int32_t i = 0; i < piece; i++) {
    if (number[bin_of[i]] < 0) number[bin_of[i]] = numbered++;
    bin_of[i] = number[bin_of[i]];
    begins[bin_of[i] + 1]++;
  }
  for (int32_t b = 0; b < made; b++) begins[b + 1] += begins[b];
  int32_t *to = open.before;
  for (int32_t b = 0; b < made; b++) to[b] = (int32_t)begins[b];
  for (int32_t i = 0; i < piece; i++) {
    int32_t where = to[bin_of[i]]++;
    document[where] = from[i], first[where] = at[i], size_of[where] = size[i];
  }
  *bins = made;
  free(memory);
  free(of_piece);
  free(of_size);
  return OK;
}

#define BLOCK 32 /* tokens: measured, longer and shorter blocks are slower */

/* Writes the tokens of a piece, and their labels: each the next token. Meanwhile it prefetches the tokens of the next piece,
 * which may be anywhere in the window. */
#define WRITE_PIECE(type) { \
  const type *in = (const type *)values + begin[s], *later = (const type *)values + begin[s + 1 < end_piece ? s + 1 : s]; \
  int64_t i = 0; \
  for (; i + BLOCK < n; i += BLOCK) { \
    for (size_t at = 0; at < BLOCK * sizeof *in; at += 64) __builtin_prefetch((const uint8_t *)(later + i) + at); \
    for (int64_t j = i; j < i + BLOCK; j++) ids[j] = (int64_t)in[j]; \
    if (labels) for (int64_t j = i; j < i + BLOCK; j++) labels[j] = (int64_t)in[j + 1]; \
  } \
  for (int64_t j = i; j < n; j++) ids[j] = (int64_t)in[j]; \
  if (labels) { \
    for (int64_t j = i; j + 1 < n; j++) labels[j] = (int64_t)in[j + 1]; \
    if (begin[s] + n < stop[s]) labels[n - 1] = (int64_t)in[n]; \
    else if (masks || s + 1 == rows[r + 1]) labels[n - 1] = ignored; \
    else labels[n - 1] = (int64_t)((const type *)values)[begin[s + 1]]; \
  } \
}

/* Writes `count` rows of `width` tokens. Row r holds the pieces from `rows[r]` to `rows[r + 1]`, and padding.
 *
 * `values`: the tokens; `kind`: bytes of a token, negative if it is signed.
 * `begin`: the first token of each piece in `values`; `stop`: the end of its document there; `tokens`: its size.
 * `ignored`: the label of a token without a next one; with `masks`, also of the last token of each document.
 * `lengths` gets the tokens of each piece. `ends` gets the end of each piece, and of the padding of each row, in the
 * flattened rows, the first of which begins at `end`. Each of `labels` to `ends` may be NULL: then it is not written.
 *
 * Returns the most tokens of a piece or of a row's padding. */
FOR_EACH_TARGET static int64_t write_rows(
    const void *restrict values, int kind, const int64_t *begin, const int64_t *stop, const int32_t *tokens,
    const int64_t *rows, int64_t count, int64_t width, int64_t first_piece, int masks, int64_t padding, int64_t ignored,
    int64_t *restrict ids, int64_t *restrict labels, int32_t *restrict positions, int32_t *restrict documents,
    int32_t *lengths, int32_t *ends, int64_t end) {
  const int64_t end_piece = rows[count];
  int64_t longest = 0;
  for (int64_t r = 0; r < count; r++) {
    int64_t left = width;
    for (int64_t s = rows[r]; s < rows[r + 1]; s++) {
      int64_t n = tokens[s];
      int32_t piece = (int32_t)(first_piece + s - rows[0]);
      switch (kind) {
        case 1: WRITE_PIECE(uint8_t) break;
        case -1: WRITE_PIECE(int8_t) break;
        case 2: WRITE_PIECE(uint16_t) break;
        case -2: WRITE_PIECE(int16_t) break;
        case 4: WRITE_PIECE(uint32_t) break;
        case -4: WRITE_PIECE(int32_t) break;
        default: WRITE_PIECE(int64_t) break;
      }
      ids += n, left -= n;
      if (labels) labels += n;
      if (positions) {
        for (int32_t i = 0; i < (int32_t)n; i++) positions[i] = i;
        positions += n;
      }
      if (documents) {
        for (int64_t i = 0; i < n; i++) documents[i] = piece;
        documents += n;
      }
      end += n;
      if (lengths) *lengths++ = (int32_t)n;
      if (ends) *ends++ = (int32_t)end;
      if (n > longest) longest = n;
    }
    end += left;
    if (left && ends) *ends++ = (int32_t)end;
    if (left > longest) longest = left;
    for (; left; left--) {
      *ids++ = padding;
      if (labels) *labels++ = ignored;
      if (positions) *positions++ = 0;
      if (documents) *documents++ = -1;
    }
  }
  return longest;
}

#define OUT(type, at) ((at) < 0 ? NULL : (type *)(memory + (at)))

/* Calls `write_rows` `count` times, and writes what it returns to `longest`, so that Python waits for the GIL once for several
 * batches. Each line of `calls` has 17 numbers: the addresses of `values`, `begin`, `stop`, `tokens` and `rows`, with `kind`
 * after the first; the first row and the one after the last, `width`, `first_piece` and the number of the first row in the batch; and the
 * offsets of the six arrays in `memory`, -1 for NULL. */
EXPORT void packing_write(
    const int64_t *calls, int64_t count, uint8_t *memory, int masks, int64_t padding, int64_t ignored, int64_t *longest) {
  for (int64_t i = 0; i < count; i++, calls += 17) {
    longest[i] = write_rows(
        ADDRESS(const void, calls[0]), (int)calls[1], ADDRESS(const int64_t, calls[2]), ADDRESS(const int64_t, calls[3]),
        ADDRESS(const int32_t, calls[4]), ADDRESS(const int64_t, calls[5]) + calls[6], calls[7] - calls[6], calls[8],
        calls[9], masks, padding, ignored, OUT(int64_t, calls[11]), OUT(int64_t, calls[12]), OUT(int32_t, calls[13]),
        OUT(int32_t, calls[14]), OUT(int32_t, calls[15]), OUT(int32_t, calls[16]), calls[10] * calls[8]);
  }
}
