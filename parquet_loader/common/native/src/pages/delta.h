/* DELTA_BINARY_PACKED: differences of integers, packed in blocks of miniblocks. */
#ifndef DELTA_H
#define DELTA_H

#include <stdint.h>

enum { DELTA_GROUP = 32 };  /* values unpacked at a time; miniblocks are multiples of it */

/* Integers that are read forward. */
typedef struct {
  const uint8_t *next, *widths, *group;  /* the next block, the widths of this one's miniblocks, the next group */
  const uint8_t *stop;
  int64_t block_values, mini_values, minis;
  int64_t mini;        /* the next miniblock of this block */
  int64_t mini_left;   /* values of the current miniblock that are still packed */
  int64_t left;        /* values that were not read yet, including those in `pending` */
  int bits;            /* bits of a difference in the current miniblock */
  uint64_t least, last;
  int64_t pending_left;
  uint64_t pending[DELTA_GROUP];  /* unpacked values, of which the last `pending_left` were not read yet */
} Delta;

/* Begins reading `values` integers of `width` bytes that are packed in the bytes from `next` to `stop`. OTHER: they do not
 * add up. */
int delta_begin(Delta *delta, const uint8_t *next, const uint8_t *stop, int64_t values, int64_t width);

/* As `delta_begin`, but other bytes may follow: `end` gets the end of the integers. */
int delta_begin_within(
    Delta *delta, const uint8_t *next, const uint8_t *stop, int64_t values, int64_t width, const uint8_t **end);

/* Writes the low `width` bytes of the next integers; `out` may be NULL. */
int delta_read(Delta *delta, int64_t count, int64_t width, uint8_t *out);

#endif
