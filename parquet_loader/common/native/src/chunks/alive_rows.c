#include "alive_rows.h"

#include <string.h>

#include "../kernels.h"

int64_t first_run_behind(const Runs *runs, int64_t number, int64_t at) {
  int64_t low = number, high = runs->deleted_count + 1;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (run_stop(runs, middle) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

uint8_t *compact(
    const Runs *runs, int64_t number, int64_t at, int64_t stop, const uint8_t *in, int64_t width, uint8_t *out) {
  for (; number <= runs->deleted_count && run_start(runs, number) < stop; number++) {
    int64_t first = run_start(runs, number), last = run_stop(runs, number);
    if (first < at) first = at;
    if (last > stop) last = stop;
    memcpy(out, in + (first - at) * width, (size_t)((last - first) * width));
    out += (last - first) * width;
  }
  return out;
}

/* Copies whole pieces as `compact_pieces` does, until one may reach `stop` or the end of the output. */
INLINE int64_t copy_pieces(
    const Runs *runs, int64_t number, int64_t at, int64_t stop, const uint8_t *in, int64_t width, uint8_t *out,
    int64_t before) {
  const Piece *pieces = runs->pieces;
  int64_t most = stop - PIECE_ROWS, most_to = pieces[runs->piece_count].to - PIECE_ROWS;
  for (; pieces[number].from <= most && pieces[number].to <= most_to; number++) {
    const uint8_t *from = in + (pieces[number].from - at) * width;
    memcpy(out + (pieces[number].to - before) * width, from, (size_t)(PIECE_ROWS * width));
  }
  return number;
}

FOR_EACH_TARGET int64_t compact_pieces(
    const Runs *runs, int64_t number, int64_t at, int64_t stop, const uint8_t *in, int64_t width, uint8_t *out,
    int64_t before) {
  for (int is_copied = 0; number < runs->piece_count; number++) {
    const Piece *piece = runs->pieces + number;
    if (!is_copied && piece->from >= at) {
      is_copied = 1;
      if (width == 1) number = copy_pieces(runs, number, at, stop, in, 1, out, before);
      if (width == 2) number = copy_pieces(runs, number, at, stop, in, 2, out, before);
      if (width == 4) number = copy_pieces(runs, number, at, stop, in, 4, out, before);
      if (width == 8) number = copy_pieces(runs, number, at, stop, in, 8, out, before);
      if (width == 16) number = copy_pieces(runs, number, at, stop, in, 16, out, before);
      piece = runs->pieces + number;
    }
    if (piece->from >= stop) return number;
    int64_t first = piece->from > at ? piece->from : at, last = piece_end(runs, number);
    int64_t until = last < stop ? last : stop, to = piece->to + first - piece->from - before;
    memcpy(out + to * width, in + (first - at) * width, (size_t)((until - first) * width));
    if (last > stop) return number;
  }
  return number;
}

int divide_runs(Buffer *space, Runs *runs) {
  int64_t count = 0, to = 0;
  int code;
  if (runs->end > INT32_MAX - PIECE_ROWS) return NO_MEMORY;
  int64_t most = runs->deleted_count + runs->end / PIECE_ROWS + 2;
  if ((code = reserve(space, most * (int64_t)sizeof(Piece)))) return code;
  Piece *pieces = (Piece *)space->bytes;
  for (int64_t number = 0; number <= runs->deleted_count; number++) {
    int64_t from = run_start(runs, number), stop = run_stop(runs, number);
    for (; from < stop; from += PIECE_ROWS) {
      int64_t rows = stop - from < PIECE_ROWS ? stop - from : PIECE_ROWS;
      pieces[count++] = (Piece){(int32_t)from, (int32_t)to};
      to += rows;
    }
  }
  pieces[count] = (Piece){INT32_MAX, (int32_t)to};
  runs->pieces = pieces, runs->piece_count = count;
  return OK;
}
