/* The RLE/bit-packing hybrid of levels and codes: runs of one value, and runs of bit-packed values. */
#ifndef RUNS_H
#define RUNS_H

#include <stdint.h>

#include "../kernels.h"
#include "../thrift.h"

#define MOST_PADDING 256  /* values after the last one: runs have groups of 8 values, those of DuckDB 256 */

INLINE int run_header(const uint8_t **next, const uint8_t *stop, uint64_t *header) {
  if (*next < stop && **next < 0x80) {  /* most headers are one byte */
    *header = *(*next)++;
    return OK;
  }
  Thrift t = {*next, stop, 0, 0};
  *header = thrift_varint(&t);
  *next = t.next;
  return t.is_short || t.is_wrong ? OTHER : OK;
}

typedef struct {
  int is_literal;
  uint64_t count;       /* values, including padding */
  const uint8_t *values;
  uint32_t repeated;
} Run;

/* Reads the run at `*next`, of at most `values` values and padding. OTHER: its bytes are missing, or a value exceeds `bits`. */
INLINE int read_run(const uint8_t **next, const uint8_t *stop, int64_t values, int bits, Run *run) {
  uint64_t header;
  if (run_header(next, stop, &header) || header >> 1 == 0) return OTHER;
  uint64_t count = header >> 1, there = (uint64_t)(stop - *next);
  run->is_literal = (int)(header & 1);
  run->repeated = 0;
  run->values = *next;
  if (run->is_literal) {
    if (count > ((uint64_t)values + MOST_PADDING - 1) / 8) return OTHER;
    if (count * (uint64_t)bits > there) return OTHER;
    *next += count * (uint64_t)bits;
    run->count = count * 8;
    return OK;
  }
  uint64_t nbytes = (uint64_t)(bits + 7) / 8;
  if (count > (uint64_t)values || there < nbytes) return OTHER;
  for (uint64_t i = 0; i < nbytes; i++) run->repeated |= (uint32_t)*(*next)++ << 8 * i;
  run->count = count;
  return bits == 32 || run->repeated >> bits == 0 ? OK : OTHER;
}

/* Whether runs hold exactly `values` values of `bits` bits, and no bytes follow. */
int runs_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int bits);

/* Unpacks a multiple of 8 codes; up to 16 bytes beyond the last one must be readable. */
void unpack(const uint8_t *in, uint32_t *out, int64_t count, int bits);

#endif
