/* The rows that are read if some are deleted, in runs. */
#ifndef ALIVE_ROWS_H
#define ALIVE_ROWS_H

#include "../buffers.h"

#define PIECE_ROWS 16  /* rows of a run copied at a time */

/* Up to PIECE_ROWS rows of a run: the first row, and its row number in the output. Copying pieces of one size needs no
 * branch on the length of a run, which would be mispredicted once a run. All columns of a call share the pieces. */
typedef struct { int32_t from, to; } Piece;

/* The rows to read: from `begin` to `end`, without `deleted`, which is sorted. Run i ends at `deleted[i]`, and may be empty.
 * Row 0 is the next row of the column. */
typedef struct {
  const int64_t *deleted;
  int64_t deleted_count, begin, end, offset;  /* `offset`: subtracted from the numbers in `deleted` */
  int64_t each;  /* values per row */
  const Piece *pieces;  /* `piece_count` + 1, the last one a sentinel; used if `each` is 1; NULL: not divided */
  int64_t piece_count;
} Runs;

static inline int64_t run_start(const Runs *runs, int64_t number) {
  return (number == 0 ? runs->begin : runs->deleted[number - 1] + 1 - runs->offset) * runs->each;
}

static inline int64_t run_stop(const Runs *runs, int64_t number) {
  return (number == runs->deleted_count ? runs->end : runs->deleted[number] - runs->offset) * runs->each;
}

static inline int64_t piece_end(const Runs *runs, int64_t number) {
  const Piece *piece = runs->pieces + number;
  return piece->from + (int64_t)piece[1].to - piece->to;
}

/* Returns how many rows of all pieces are before row `at`. `number`: the first piece that ends after it. */
static inline int64_t rows_before(const Runs *runs, int64_t number, int64_t at) {
  const Piece *piece = runs->pieces + number;
  return piece->from < at ? piece->to + at - piece->from : piece->to;
}

/* Returns the first run, from `number` on, that ends after value `at`. */
int64_t first_run_behind(const Runs *runs, int64_t number, int64_t at);

/* Copies the values in runs, from run `number` on. `in` has the values `at` to `stop`. Returns the end of the output. */
uint8_t *compact(
    const Runs *runs, int64_t number, int64_t at, int64_t stop, const uint8_t *in, int64_t width, uint8_t *out);

/* Copies the rows in pieces, from piece `number` on. `in` has the rows `at` to `stop`; `out` is output row `before`. A row is
 * a value of 1, 2, 4, 8 or 16 bytes. Returns the first piece that ends after `stop`. May overwrite up to PIECE_ROWS rows
 * behind the copied ones, but none behind the output of all pieces. */
int64_t compact_pieces(
    const Runs *runs, int64_t number, int64_t at, int64_t stop, const uint8_t *in, int64_t width, uint8_t *out,
    int64_t before);

/* Divides runs into pieces. NO_MEMORY: there is no memory for them, or their rows do not fit into 32 bits. */
int divide_runs(Buffer *space, Runs *runs);

#endif
