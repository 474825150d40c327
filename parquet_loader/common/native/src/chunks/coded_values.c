#include "coded_values.h"

#include "../pages/encodings.h"
#include "../pages/runs.h"

#define BLOCK 1024  /* codes unpacked at a time */

static int begin_run(Column *column, int64_t values) {
  Run run;
  if (read_run(&column->next, column->stop, values, column->bits, &run)) return OTHER;
  column->is_literal = run.is_literal;
  column->run = run.values;
  column->repeated = run.repeated;
  column->run_done = 0;
  column->run_left = (int64_t)run.count;
  return run.is_literal || (int64_t)run.repeated < column->entries ? OK : OTHER;
}

int look_up_rows(
    Column *column, int64_t rows, uint8_t *out, const Runs *runs, int64_t at, int64_t *number) {
  uint32_t codes[BLOCK + 8], alive[BLOCK + PIECE_ROWS];
  int64_t values = column->values_left;
  while (rows > 0) {
    if (column->run_left == 0 && begin_run(column, values)) return OTHER;
    int64_t some = rows < column->run_left ? rows : column->run_left, before = 0, count;
    if (out && column->is_literal && some > BLOCK) some = BLOCK;
    count = some;
    if (runs) before = rows_before(runs, *number, at);
    if (out && column->is_literal) {
      int64_t skipped = column->run_done % 8, whole = (skipped + some + 7) / 8 * 8;
      const uint8_t *from = column->run + column->run_done / 8 * column->bits;
      /* `unpack` reads less than a group of 8 codes and 16 bytes beyond them, which is within SLACK. */
      if (column->next - from < ((skipped + some) * column->bits + 7) / 8) return OTHER;
      unpack(from, codes, whole, column->bits);
      if ((int64_t)largest(codes + skipped, some) >= column->entries) return OTHER;
      if (runs) {
        const uint8_t *in = (const uint8_t *)(codes + skipped);
        *number = compact_pieces(runs, *number, at, at + some, in, sizeof *alive, (uint8_t *)alive, before);
        count = rows_before(runs, *number, at + some) - before;
      }
      look_up(runs ? alive : codes + skipped, count, column->words, column->out, out);
    } else if (out) {
      if (runs) {
        while (*number < runs->piece_count && piece_end(runs, *number) <= at + some) ++*number;
        count = rows_before(runs, *number, at + some) - before;
      }
      fill(column->words + column->repeated * column->out, column->out, count, out);
    }
    column->run_done += some, column->run_left -= some, rows -= some, values -= some, at += some;
    if (out) out += count * column->out;
  }
  return OK;
}
