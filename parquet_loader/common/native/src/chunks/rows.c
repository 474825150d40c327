#include "rows.h"

#include "../pages/byte_arrays.h"
#include "../pages/encodings.h"
#include "../pages/spread.h"
#include "coded_values.h"
#include "next_page.h"

#define BLOCK 1024  /* rows with nulls decoded at a time */
#define SCRATCH_BYTES (1 << 14)  /* decoded at a time if some rows are left out: it fits the L1 cache */
#define READ_APART 512  /* from this many bytes a value, runs of rows are read from the file one by one */
#define ROW_APART (1 << 14)  /* from this many bytes a row, rows are read from the file to their slots one by one */

/* Writes the next non-null values of a page, before they are converted; skips them if `out` is NULL. */
static int decode_values(RowGroup *group, Column *column, int64_t count, uint8_t *out) {
  int64_t nbytes = count * column->kept;
  int code = OK;
  int is_text = column->checks_text, is_array = is_byte_array(column);
  if (out && is_array && column->kind != CODED && !column->vocabulary && !column->is_staged) column->is_viewed = 1;
  switch (column->kind) {
    case IN_FILE:
      if (out) code = fetch(&group->source, column->place, nbytes, out);
      column->place += nbytes;
      break;
    case CODED:
      code = look_up_rows(column, count, out, NULL, 0, NULL);
      break;
    case DIFFERENCES:
      code = delta_read(&column->delta, count, column->kept, out);
      break;
    case STREAMS:
      if (out) join_streams(column->next, column->stride, column->kept, count, out);
      column->next += count;
      break;
    case PREFIXED:
      code = plain_views(&column->next, column->stop, count, is_text, (View *)out);
      break;
    case MEASURED:
      code = delta_length_views(&column->delta, &column->next, column->stop, count, is_text, (View *)out);
      break;
    default:
      if (out && column->kept == column->width) memcpy(out, column->next, (size_t)nbytes);
      else if (out) narrow(column->next, column->width, count, column->kept, out);
      column->next += count * column->width;
  }
  column->values_left -= count;
  if (is_array && !column->values_left && column->kind >= PREFIXED && column->next != column->stop) return OTHER;
  return code;
}

int read_values(RowGroup *group, Column *column, int64_t count, uint8_t *out) {
  uint8_t some[BLOCK * DECIMAL_BYTES];
  /* The dictionary is converted already. */
  if (!out || column->conversion == NO_CONVERSION || column->kind == CODED) return decode_values(group, column, count, out);
  for (int64_t done = 0; done < count; done += BLOCK, out += BLOCK * column->out) {
    int64_t few = count - done < BLOCK ? count - done : BLOCK;
    int code = decode_values(group, column, few, some);
    if (code == OK) code = converted(column, some, few, out);
    if (code) return code;
  }
  return OK;
}

/* Reads `rows` rows, some of which may be null: these get `filler`, or zeros, and 0 in `defined`. OTHER: there are nulls, and
 * neither of the two is given. */
static int read_with_nulls(
    RowGroup *group, Column *column, int64_t rows, uint8_t *out, uint8_t *defined, const uint8_t *filler) {
  static const uint8_t zero[16];
  uint8_t some[BLOCK], narrow_values[BLOCK * 16 + SPREAD_SLACK];
  if (column->values_left == column->left) {
    if (defined) memset(defined, 1, (size_t)rows);
    return read_values(group, column, rows, out);
  }
  if (out && !defined && !filler) return OTHER;
  for (int64_t left = column->left; rows > 0;) {
    int64_t count = rows < BLOCK ? rows : BLOCK, values = 0;
    int code = read_defined(&column->levels, left, count, column->optional, some);
    if (code) return code;
    for (int64_t i = 0; i < count; i++) values += some[i];
    const int has_nulls = values < count;
    /* Plain values are not copied first. */
    const int from_page = has_nulls && column->kind == IN_MEMORY && is_as_stored(column) && !is_byte_array(column);
    uint8_t *to = !out || from_page ? NULL : has_nulls && column->out <= 16 ? narrow_values : out;
    const uint8_t *from = from_page ? column->next : to;
    if ((code = read_values(group, column, values, to))) return code;
    if (out && has_nulls) spread(from, values, some, count, filler ? filler : zero, column->out, out);
    if (defined) {
      memcpy(defined, some, (size_t)count);
      defined += count;
    }
    if (out) out += count * column->out;
    rows -= count, left -= count;
  }
  return OK;
}

int read_rows(
    RowGroup *group, Column *column, int64_t rows, uint8_t *out, uint8_t *defined, const uint8_t *filler) {
  int code = OK;
  while (rows > 0 && code == OK) {
    if (column->left == 0) {
      code = next_page(group, column);
      continue;
    }
    int64_t some = rows < column->left ? rows : column->left;
    code = read_with_nulls(group, column, some, out, defined, filler);
    column->left -= some, rows -= some;
    if (out) out += some * column->out;
    if (defined) defined += some;
  }
  return code;
}

int read_to_slots(
    RowGroup *group, Column *column, int64_t rows, int64_t each, uint8_t *out, const int64_t *slots, const uint8_t *filler) {
  const int64_t row_bytes = each * column->out;
  column->in_slots = row_bytes < ROW_APART;
  for (int64_t i = 0; i < rows; i++) {
    int code = read_rows(group, column, each, out + slots[i] * row_bytes, NULL, filler);
    if (code) return code;
  }
  return OK;
}

/* As `compact`, for a plain page that is still in the file. */
static int fetch_runs(
    RowGroup *group, const Column *column, const Runs *runs, int64_t number, int64_t at, int64_t stop, uint8_t **out) {
  for (; number <= runs->deleted_count && run_start(runs, number) < stop; number++) {
    int64_t first = run_start(runs, number), last = run_stop(runs, number);
    if (first < at) first = at;
    if (last > stop) last = stop;
    int64_t size = (last - first) * column->out;
    int code = fetch(&group->source, column->place + (first - at) * column->out, size, *out);
    if (code) return code;
    *out += size;
  }
  return OK;
}

int read_runs(
    RowGroup *group, Column *column, const Runs *runs, uint8_t *out, uint8_t *defined, const uint8_t *filler) {
  const int64_t width = column->out, most = SCRATCH_BYTES / width + 1, last = runs->end * runs->each;
  uint8_t *const begin = out;
  const int in_pieces = runs->pieces && runs->each == 1 && width <= 16 && (width & (width - 1)) == 0;
  int64_t at = 0, number = 0, piece = 0;
  uint8_t flags[SCRATCH_BYTES + 1];
  int code = reserve(&group->scratch, most * width);
  while (code == OK && at < last) {
    while (run_start(runs, number) == run_stop(runs, number)) number++;
    int64_t first = run_start(runs, number);
    if (first > at) {
      code = read_rows(group, column, first - at, NULL, NULL, NULL);
      at = first;
      continue;
    }
    if (column->left == 0) {
      code = next_page(group, column);
      continue;
    }
    int64_t stop = at + column->left < last ? at + column->left : last;
    int is_whole = column->values_left == column->left && is_as_stored(column) && !defined;
    if (is_whole && column->kind == IN_FILE && width >= READ_APART) {
      code = fetch_runs(group, column, runs, number, at, stop, &out);
      if (code == OK) code = read_rows(group, column, stop - at, NULL, NULL, NULL);
    } else if (in_pieces && column->kind == CODED && column->values_left == column->left && !defined) {
      uint8_t *to = begin + rows_before(runs, piece, at) * width;
      code = look_up_rows(column, stop - at, to, runs, at, &piece);
      column->left = column->values_left -= stop - at;
    } else {
      const int is_there = is_whole && column->kind == IN_MEMORY;
      const uint8_t *in = is_there ? column->next : group->scratch.bytes;
      if (!is_there && stop > at + most) stop = at + most;
      code = read_rows(group, column, stop - at, is_there ? NULL : group->scratch.bytes, defined ? flags : NULL, filler);
      if (is_there) column->is_viewed = 1;
      if (code) break;
      const int64_t own = piece;
      if (in_pieces) piece = compact_pieces(runs, own, at, stop, in, width, begin, 0);
      else out = compact(runs, number, at, stop, in, width, out);
      if (defined && in_pieces) compact_pieces(runs, own, at, stop, flags, 1, defined, 0);
      else if (defined) defined = compact(runs, number, at, stop, flags, 1, defined);
    }
    number = first_run_behind(runs, number, stop);
    at = stop;
  }
  return code;
}
