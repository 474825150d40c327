/* Decodes column chunks of numbers and byte arrays: numbers to contiguous values, byte arrays to views of their pages.
 *
 * One call decodes some rows of many column chunks without the GIL. A page is accepted only if every level, run and
 * length in it adds up exactly. Otherwise (other encodings, damage) the call returns an error code, and Arrow decodes the
 * column chunk or reports the error. Every length comes from the file and is checked before it is used.
 *
 * Values are little-endian in files and here; `bindings.py` loads the kernels on little-endian machines only.
 */
#include "pages/page_headers.h"

#include <stdlib.h>

#include "buffers.h"
#include "codecs.h"
#include "pages/byte_arrays.h"
#include "pages/decimals.h"
#include "pages/delta.h"
#include "pages/encodings.h"
#include "pages/levels.h"
#include "pages/lists.h"
#include "pages/runs.h"
#include "pages/timestamps.h"

/* How the values of a page are stored. */
enum {
  IN_MEMORY,    /* plain, or views of DELTA_BYTE_ARRAY */
  IN_FILE,      /* plain, not read yet */
  CODED,        /* codes of a dictionary, or booleans */
  DIFFERENCES,  /* DELTA_BINARY_PACKED */
  STREAMS,      /* BYTE_STREAM_SPLIT */
  PREFIXED,     /* plain byte arrays: each value behind its length */
  MEASURED      /* DELTA_LENGTH_BYTE_ARRAY: all lengths first */
};
/* Physical types. BYTES have one width; TEXT are byte arrays that have to be UTF-8. */
enum { BYTES = 0, INTEGER = 1, FLOATING = 2, BOOLEAN = 3, BYTE_ARRAY = 4, TEXT = 5 };

#define BLOCK 1024  /* codes unpacked, or rows with nulls decoded, at a time */
#define LONGEST_HEADER (1 << 16)  /* bytes of a page header that is accepted */
#define SCRATCH_BYTES (1 << 14)  /* decoded at a time if some rows are left out: it fits the L1 cache */
#define PIECE_ROWS 16  /* rows of a run copied at a time */
#define MOST_DELTA_BYTES (1 << 23)  /* limit for the values of a DELTA_BYTE_ARRAY page and their views */
#define LARGE_PAGE (1 << 16)  /* from this many bytes, values of an uncompressed page of lists are read to their places */
#define FIRST_BYTES (1 << 12)  /* of a large page of lists that are read first: most levels are among them */
#define MOST_SPARE_BYTES (1 << 22)  /* limit for a page buffer that is kept for reuse */
#define READ_APART 512  /* from this many bytes a value, runs of rows are read from the file one by one */
#define ROW_APART (1 << 14)  /* from this many bytes a row, rows are read from the file to their slots one by one */

/* Moves a buffer to an owner that has none. */
static void hand_over(Buffer *from, Buffer *to) {
  if (to->bytes || !from->bytes) return;
  *to = *from;
  *from = (Buffer){NULL, 0};
}

/* A stack of buffers. */
typedef struct {
  Buffer *buffers;
  int64_t count, capacity;
} Shelf;

static int put(Shelf *shelf, Buffer *buffer) {
  if (!buffer->bytes) return OK;
  if (shelf->count == shelf->capacity) {
    int64_t capacity = 2 * shelf->capacity + 8;
    Buffer *buffers = realloc(shelf->buffers, (size_t)capacity * sizeof(Buffer));
    if (!buffers) return NO_MEMORY;
    shelf->buffers = buffers, shelf->capacity = capacity;
  }
  shelf->buffers[shelf->count++] = *buffer;
  *buffer = (Buffer){NULL, 0};
  return OK;
}

static void clear(Shelf *shelf) {
  for (int64_t i = 0; i < shelf->count; i++) release(&shelf->buffers[i]);
  free(shelf->buffers);
  *shelf = (Shelf){NULL, 0, 0};
}

typedef struct {
  int64_t at, end;      /* the next page in the file, and the end of the chunk */
  int64_t rows;         /* rows after the current page; levels if there are `lists` */
  int64_t width, kept;  /* bytes of a value in the file, and how many low bytes of it are decoded */
  int64_t out;          /* bytes of a delivered value: `kept`, unless values are converted */
  int64_t conversion;   /* see `decimals.h` and `timestamps.h` */
  int codec, physical;
  int optional;         /* the definition level of a value */
  int64_t list_values;  /* values per row if rows are lists of one length, else 0 */
  ListLevels *lists;    /* levels if rows are lists of any length, else NULL */
  int64_t position;     /* index in its list of the first value after the current page */
  int64_t encodings;    /* one bit for each encoding that the footer names */
  int always_compressed;  /* pages of version 2 are compressed whatever their headers say: old parquet-cpp, PARQUET-10353 */
  int had_pages;        /* a data page was read */
  int in_slots;         /* rows have slots, and are too short to be read from the file one by one */
  int64_t left;         /* rows of the current page that were not read yet; levels if there are `lists` */
  int64_t values_left;  /* values of the current page that were not read yet: fewer than `left` if some are null */
  Levels levels;        /* definition levels, if there are nulls in the page */
  int kind;             /* how the page stores its values */
  int64_t place;        /* IN_FILE: offset of the next value in the file */
  const uint8_t *next, *stop;
  Buffer page, dictionary;
  int64_t entries;      /* of the dictionary; -1: no dictionary was read */
  int bits;             /* CODED: bits per code; then the current run: */
  int64_t run_left, run_done;
  int is_literal;
  uint32_t repeated;
  const uint8_t *run;
  const uint8_t *words;  /* CODED: `entries` decoded values of `out` bytes, by code */
  Delta delta;          /* DIFFERENCES, MEASURED */
  int64_t stride;       /* STREAMS: bytes from one byte of a value to its next one */
  int64_t most_page_bytes;  /* limit for a decompressed page, by the footer */
  Buffer entry_views;   /* byte arrays: views of the dictionary's entries */
  int64_t entry_bytes;  /* byte arrays: bytes of all of the dictionary's entries */
  Buffer views, joined; /* DELTA_BYTE_ARRAY: views of the page's values, and the values themselves */
  int checks_text;      /* each value of the page has to be checked, because some byte is not ASCII */
  int is_viewed;        /* views of the page were delivered and are not released yet */
} Column;

/* Whether values are delivered as plain pages store them. */
static int is_as_stored(const Column *column) {
  return column->kept == column->width && column->conversion == NO_CONVERSION;
}

typedef struct {
  FileBytes source;
  Buffer raw;           /* a compressed page */
  Decompressors decompressors;
  Buffer page, dictionary;  /* of a column that was read to its end; the next column reuses them while they are cached */
  Buffer scratch;       /* decoded values, some of which are left out */
  Buffer pieces;        /* the `Piece`s of the rows that are delivered */
  Shelf viewed, spare;  /* pages of byte arrays: those with views in use, and those to reuse */
  int64_t count;
  Column columns[];
} Group;

static int is_byte_array(const Column *column) { return column->physical >= BYTE_ARRAY; }

/* Before the next page of a column of byte arrays: keeps the current page if views of it were delivered, and takes a
 * spare buffer. */
static int keep_viewed_page(Group *group, Column *column) {
  int code = OK;
  if (column->is_viewed) code = put(&group->viewed, &column->page) || put(&group->viewed, &column->joined) ? NO_MEMORY : OK;
  column->is_viewed = 0;
  if (!column->page.bytes && group->spare.count) column->page = group->spare.buffers[--group->spare.count];
  return code;
}

/* Reads and decompresses `nbytes` of the file to exactly `out_bytes` at `out`. */
static int unpacked(Group *group, int codec, int64_t at, int64_t nbytes, uint8_t *out, int64_t out_bytes) {
  int code;
  if (codec == PLAIN_CODEC) return nbytes == out_bytes ? fetch(&group->source, at, nbytes, out) : OTHER;
  if (nbytes == 0) return out_bytes == 0 ? OK : OTHER;
  const uint8_t *in;
  if (group->source.base) {
    if (at < 0 || nbytes < 0 || at > group->source.size - nbytes) return ENDED;
    in = group->source.base + at;
  } else {
    if ((code = reserve(&group->raw, nbytes)) || (code = fetch(&group->source, at, nbytes, group->raw.bytes))) return code;
    in = group->raw.bytes;
  }
  return decompress(&group->decompressors, codec, in, nbytes, out, out_bytes);
}

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

static int64_t run_start(const Runs *runs, int64_t number) {
  return (number == 0 ? runs->begin : runs->deleted[number - 1] + 1 - runs->offset) * runs->each;
}

static int64_t run_stop(const Runs *runs, int64_t number) {
  return (number == runs->deleted_count ? runs->end : runs->deleted[number] - runs->offset) * runs->each;
}

/* Returns the first run, from `number` on, that ends after value `at`. */
static int64_t first_run_behind(const Runs *runs, int64_t number, int64_t at) {
  int64_t low = number, high = runs->deleted_count + 1;
  while (low < high) {
    int64_t middle = (low + high) / 2;
    if (run_stop(runs, middle) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Copies the values in runs, from run `number` on. `in` has the values `at` to `stop`. Returns the end of the output. */
static uint8_t *compact(
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

static int64_t piece_end(const Runs *runs, int64_t number) {
  const Piece *piece = runs->pieces + number;
  return piece->from + (int64_t)piece[1].to - piece->to;
}

/* Copies whole pieces as `compact_pieces` does, until one may reach `stop` or the end of the output. */
static inline __attribute__((always_inline)) int64_t copy_pieces(
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

/* Copies the rows in pieces, from piece `number` on. `in` has the rows `at` to `stop`; `out` is output row `before`. A row is
 * a value of 1, 2, 4, 8 or 16 bytes. Returns the first piece that ends after `stop`. May overwrite up to PIECE_ROWS rows
 * behind the copied ones, but none behind the output of all pieces. */
FOR_EACH_TARGET static int64_t compact_pieces(
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

/* Divides runs into pieces. NO_MEMORY: there is no memory for them, or their rows do not fit into 32 bits. */
static int divide_runs(Buffer *space, Runs *runs) {
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

/* Returns how many rows of all pieces are before row `at`. `number`: the first piece that ends after it. */
static int64_t rows_before(const Runs *runs, int64_t number, int64_t at) {
  const Piece *piece = runs->pieces + number;
  return piece->from < at ? piece->to + at - piece->from : piece->to;
}

/* Writes the values of the next codes of a page. If `runs` is not NULL, these are the rows `at` to `at` + `rows`, and only
 * rows in pieces, from piece `*number` on, are written. */
static int look_up_rows(
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

/* Converts `count` stored values, of which `width` bytes each were decoded, to `out`. */
static int converted(const Column *column, int64_t width, const uint8_t *in, int64_t count, uint8_t *out) {
  if (column->conversion == INT96_TIMESTAMPS) return convert_int96(in, count, out);
  return convert_decimals(in, width, column->physical == BYTES, count, column->conversion, out);
}

static int read_dictionary(Group *group, Column *column, const Header *header) {
  int64_t encoding = header->fields[DICTIONARY][ENCODING], values = header->fields[DICTIONARY][VALUES];
  int64_t nbytes = values * column->width, page_bytes = header->fields[0][PAGE_BYTES];
  int is_array = is_byte_array(column), code;
  if (column->physical == BOOLEAN) return OTHER;
  if (!header->seen[DICTIONARY] || column->entries >= 0 || column->had_pages || values < 0) return OTHER;
  if (is_array) {
    nbytes = header->fields[0][PLAIN_BYTES];
    if (nbytes > column->most_page_bytes || values > nbytes / 4) return OTHER;
  }
  if ((encoding != PLAIN && encoding != PLAIN_DICTIONARY) || header->fields[0][PLAIN_BYTES] != nbytes) return OTHER;
  if (nbytes > page_bytes * most_expansion(column->codec)) return OTHER;
  int64_t most = column->out > column->width ? column->out : column->width;
  if ((code = reserve(&column->dictionary, is_array ? nbytes : values * most))) return code;
  Buffer *into = column->conversion ? &column->page : &column->dictionary;  /* `page` is free: no data page was read */
  if (column->conversion && (code = reserve(into, nbytes))) return code;
  int64_t at = column->at + header->nbytes;
  if ((code = unpacked(group, column->codec, at, page_bytes, into->bytes, nbytes))) return code;
  if (column->conversion) {
    if ((code = converted(column, column->width, into->bytes, values, column->dictionary.bytes))) return code;
  } else if (is_array) {
    const uint8_t *entries = into->bytes;
    if ((code = reserve(&column->entry_views, values * (int64_t)sizeof(View)))) return code;
    View *views = (View *)column->entry_views.bytes;
    const int is_text = column->physical == TEXT && !is_all_ascii(entries, nbytes);
    if ((code = plain_views(&entries, entries + nbytes, values, is_text, views))) return code;
    if (entries != into->bytes + nbytes) return OTHER;
    number_views(values, views);
  } else if (column->kept < column->width) {
    narrow(into->bytes, column->width, values, column->kept, into->bytes);
  }
  column->entries = values;
  column->entry_bytes = is_array ? nbytes - 4 * values : 0;
  return OK;
}

/* Begins a page of byte arrays; values of DELTA_BYTE_ARRAY are decoded to another buffer. */
static int begin_views(Column *column, int64_t encoding) {
  int64_t values = column->values_left, nbytes = values * (int64_t)sizeof(View), total;
  int code = OK;
  if (encoding != DELTA_BYTE_ARRAY) {
    column->kind = encoding == PLAIN ? PREFIXED : MEASURED;
    if (column->kind == MEASURED)
      code = delta_begin_within(&column->delta, column->next, column->stop, values, sizeof(int32_t), &column->next);
    if (code == OK && column->physical == TEXT)
      column->checks_text = !is_all_ascii(column->next, column->stop - column->next);
    return code;
  }
  if (values > MOST_DELTA_BYTES / (int64_t)sizeof(View)) return OTHER;
  if ((code = reserve(&column->views, nbytes))) return code;
  View *views = (View *)column->views.bytes;
  if ((total = delta_views(column->next, column->stop, values, MOST_DELTA_BYTES - nbytes, views)) < 0) return OTHER;
  column->kind = IN_MEMORY;
  column->next = column->views.bytes;
  if ((code = reserve(&column->joined, total))) return code;
  return join_delta_views(values, column->physical == TEXT, column->joined.bytes, views);
}

/* Begins the values of a page, which take exactly the bytes from `next` to `stop`. */
static int begin_values(Column *column, int64_t encoding) {
  static const uint8_t booleans[] = {0, 1};
  int64_t values = column->values_left, nbytes = column->stop - column->next;
  int is_delta = encoding == DELTA_LENGTH_BYTE_ARRAY || encoding == DELTA_BYTE_ARRAY;
  if (is_byte_array(column) && (encoding == PLAIN || is_delta)) return begin_views(column, encoding);
  if (encoding == PLAIN && column->physical != BOOLEAN) {
    column->kind = IN_MEMORY;
    return nbytes == values * column->width ? OK : OTHER;
  }
  column->run_left = 0;
  switch (encoding) {
    case PLAIN:  /* a run of packed bits */
      column->kind = CODED;
      column->bits = 1, column->is_literal = 1, column->run = column->next;
      column->run_left = values, column->run_done = 0;
      column->words = booleans, column->entries = 2;
      column->next = column->stop;
      return nbytes == (values + 7) / 8 ? OK : OTHER;
    case RLE: {
      uint32_t length;
      if (column->physical != BOOLEAN || nbytes < 4) return OTHER;
      memcpy(&length, column->next, 4);
      column->kind = CODED;
      column->bits = 1, column->words = booleans, column->entries = 2;
      column->next += 4;
      if (length != (uint64_t)(nbytes - 4)) return OTHER;
      return runs_add_up(column->next, column->stop, values, 1) ? OK : OTHER;
    }
    case PLAIN_DICTIONARY: case RLE_DICTIONARY:
      column->kind = CODED;
      column->words = is_byte_array(column) ? column->entry_views.bytes : column->dictionary.bytes;
      if (column->physical == BOOLEAN || column->entries < 0 || nbytes == 0) return OTHER;
      column->bits = *column->next++;
      return column->bits <= 32 && runs_add_up(column->next, column->stop, values, column->bits) ? OK : OTHER;
    case DELTA_BINARY_PACKED:
      column->kind = DIFFERENCES;
      if (column->physical != INTEGER) return OTHER;
      return delta_begin(&column->delta, column->next, column->stop, values, column->width);
    case BYTE_STREAM_SPLIT:
      column->kind = STREAMS;
      column->stride = values;
      if (column->physical == BOOLEAN || is_byte_array(column)) return OTHER;
      return nbytes == values * column->width ? OK : OTHER;
  }
  return OTHER;
}

/* Checks the definition levels of a page and counts its values. */
static int check_definitions(Column *column, const uint8_t *next, const uint8_t *stop) {
  if (column->list_values) return all_levels(next, stop, column->left, column->optional) ? OK : OTHER;
  column->levels = (Levels){.next = next, .stop = stop};
  column->values_left = count_defined(next, stop, column->left);
  return column->values_left < 0 ? OTHER : OK;
}

/* Checks by the repetition levels of a page that every list has `list_values` values. */
static int check_lists(Column *column, const uint8_t *next, const uint8_t *stop) {
  if (!lists_add_up(next, stop, column->left, column->position, column->list_values)) return OTHER;
  column->position = (column->position + column->left) % column->list_values;
  return OK;
}

/* Fetches the levels at the start of a large uncompressed page of lists of version 1; `nbytes` gets their bytes, with their
 * lengths. */
static int fetch_levels(Group *group, Column *column, int64_t at, int64_t page_bytes, int64_t *nbytes) {
  int64_t there = 0, end = 0;
  for (int step = 0; step < 3; step++) {  /* the first length, the second one, the end */
    uint32_t length;
    const int64_t wanted = step < 2 ? end + (int64_t)sizeof length : end;
    if (wanted > page_bytes) return OTHER;
    if (wanted > there) {
      const int64_t until = wanted > FIRST_BYTES ? wanted : FIRST_BYTES;
      int code = fetch(&group->source, at + there, until - there, column->page.bytes + there);
      if (code) return code;
      there = until;
    }
    if (step < 2) {
      memcpy(&length, column->page.bytes + end, sizeof length);
      end = wanted + (int64_t)length;
    }
  }
  *nbytes = end;
  return OK;
}

/* Begins the levels of a page of version 1 of `rows` rows or levels, which are the first of the bytes from `next` to `stop`. */
static int begin_first_levels(Column *column, int64_t rows) {
  const int has_lists = column->list_values || column->lists;
  const uint8_t *repeated = NULL, *repeated_end = NULL;
  for (int definitions = has_lists ? 0 : 1; definitions < (column->optional ? 2 : 1); definitions++) {
    uint32_t length;
    if (column->stop - column->next < 4) return OTHER;
    memcpy(&length, column->next, 4);
    column->next += 4;
    if (length > (uint64_t)(column->stop - column->next)) return OTHER;
    const uint8_t *stop = column->next + length;
    if (column->lists && !definitions) {
      repeated = column->next, repeated_end = stop;
    } else if (column->lists) {
      column->values_left = lists_begin_page(column->lists, repeated, repeated_end, column->next, stop, rows, -1);
      if (column->values_left < 0) return OTHER;
    } else if ((definitions ? check_definitions : check_lists)(column, column->next, stop)) {
      return OTHER;
    }
    column->next = stop;
  }
  return OK;
}

static int begin_page(Group *group, Column *column, const Header *header) {
  int is_second = header->fields[0][KIND] == DATA_PAGE_V2, part = is_second ? V2 : V1, code;
  const int64_t *fields = header->fields[part];
  int64_t at = column->at + header->nbytes, rows = fields[VALUES], levels = 0, repetitions = 0;
  int64_t page_bytes = header->fields[0][PAGE_BYTES], plain_bytes = header->fields[0][PLAIN_BYTES];
  int64_t encoding = fields[is_second ? V2_ENCODING : ENCODING];
  int64_t coded = INT64_C(1) << RLE_DICTIONARY | INT64_C(1) << PLAIN_DICTIONARY;
  const int has_lists = column->list_values || column->lists;
  int codec = !is_second || header->is_compressed || column->always_compressed ? column->codec : PLAIN_CODEC;
  if (!header->seen[part] || rows <= 0 || rows > column->rows || encoding < 0 || encoding > 61) return OTHER;
  if (!(column->encodings & (INT64_C(1) << encoding & coded ? coded : INT64_C(1) << encoding))) return OTHER;
  int64_t most_bytes = is_byte_array(column) ? column->most_page_bytes : rows * (column->width + 8) + LONGEST_HEADER;
  if (plain_bytes > most_bytes) return OTHER;
  if (plain_bytes > page_bytes * most_expansion(codec)) return OTHER;
  if (is_second) {
    levels = fields[V2_LEVELS_BYTES];
    repetitions = fields[V2_REPETITION_BYTES];
    if (!column->lists && fields[V2_ROWS] * (column->list_values ? column->list_values : 1) != rows) return OTHER;
    if (column->lists && fields[V2_ROWS] < 0) return OTHER;
    if (levels < 0 || repetitions < 0) return OTHER;
    if (!levels != !column->optional || !repetitions != !has_lists) return OTHER;
    levels += repetitions;
    if (levels > page_bytes || levels > plain_bytes) return OTHER;
  } else {
    if (column->optional && fields[LEVELS_ENCODING] != RLE) return OTHER;
    if (has_lists && fields[REPETITIONS_ENCODING] != RLE) return OTHER;
  }
  column->had_pages = 1;
  column->rows -= rows;
  column->left = column->values_left = rows;
  /* The last page ends with the chunk. */
  if (column->rows == 0 && at + page_bytes != column->end) return OTHER;
  if (is_byte_array(column) && (code = keep_viewed_page(group, column))) return code;
  if (levels) {
    if ((code = reserve(&column->page, plain_bytes))) return code;
    if ((code = fetch(&group->source, at, levels, column->page.bytes))) return code;
  }
  int64_t nbytes = plain_bytes - levels;
  int has_levels = !is_second && (column->optional || has_lists);
  const uint8_t *end = column->page.bytes + levels;
  if (levels && column->lists) {
    const uint8_t *definitions = column->page.bytes + repetitions;
    column->values_left =
        lists_begin_page(column->lists, column->page.bytes, definitions, definitions, end, rows, fields[V2_ROWS]);
  } else {
    if (repetitions && check_lists(column, column->page.bytes, column->page.bytes + repetitions)) return OTHER;
    if (levels > repetitions && check_definitions(column, column->page.bytes + repetitions, end)) return OTHER;
  }
  if (column->values_left < 0 || (is_second && column->values_left != rows - fields[V2_NULLS])) return OTHER;
  const int can_stay = codec == PLAIN_CODEC && encoding == PLAIN && column->physical < BOOLEAN && is_as_stored(column) &&
                       !group->source.base;
  const int is_large = page_bytes >= LARGE_PAGE;
  if (has_levels && column->lists && can_stay && is_large && page_bytes == plain_bytes) {
    if ((code = reserve(&column->page, plain_bytes))) return code;
    if ((code = fetch_levels(group, column, at, page_bytes, &levels))) return code;
    column->next = column->page.bytes, column->stop = column->next + levels;
    if ((code = begin_first_levels(column, rows))) return code;
    nbytes = plain_bytes - levels, has_levels = 0;
  }
  const int stays = column->lists ? is_large && lists_are_values(column->lists) : !column->in_slots;
  if (can_stay && !has_levels && column->values_left == rows && stays) {
    if (page_bytes != plain_bytes || nbytes != rows * column->width) return OTHER;
    column->kind = IN_FILE;
    column->place = at + levels;
    return OK;
  }
  if ((code = reserve(&column->page, plain_bytes))) return code;
  uint8_t *values = column->page.bytes + levels;
  if ((code = unpacked(group, codec, at + levels, page_bytes - levels, values, nbytes))) return code;
  column->next = values;
  column->stop = column->next + nbytes;
  if (has_levels && (code = begin_first_levels(column, rows))) return code;
  return begin_values(column, encoding);
}

static int next_page(Group *group, Column *column) {
  Header header;
  int code;
  if (column->at < 0 || column->at >= column->end) return ENDED;
  if ((code = read_header(&group->source, column->at, column->end, LONGEST_HEADER, &header))) return code;
  int64_t page_bytes = header.fields[0][PAGE_BYTES], kind = header.fields[0][KIND];
  int64_t room = column->end - column->at - header.nbytes;
  if (page_bytes < 0 || page_bytes > room || header.fields[0][PLAIN_BYTES] < 0) return OTHER;
  if (kind == DICTIONARY_PAGE) code = read_dictionary(group, column, &header);
  else if (kind == DATA_PAGE || kind == DATA_PAGE_V2) code = begin_page(group, column, &header);
  else code = OTHER;
  column->at += header.nbytes + page_bytes;
  return code;
}

/* Writes the next non-null values of a page, before they are converted; skips them if `out` is NULL. */
static int decode_values(Group *group, Column *column, int64_t count, uint8_t *out) {
  int64_t nbytes = count * column->kept;
  int code = OK;
  int is_text = column->checks_text, is_array = is_byte_array(column);
  if (out && is_array && column->kind != CODED) column->is_viewed = 1;
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

/* Writes the next non-null values of a page, or skips them if `out` is NULL. */
static int read_values(Group *group, Column *column, int64_t count, uint8_t *out) {
  uint8_t some[BLOCK * DECIMAL_BYTES];
  /* The dictionary is converted already. */
  if (!out || column->conversion == NO_CONVERSION || column->kind == CODED) return decode_values(group, column, count, out);
  for (int64_t done = 0; done < count; done += BLOCK, out += BLOCK * column->out) {
    int64_t few = count - done < BLOCK ? count - done : BLOCK;
    int code = decode_values(group, column, few, some);
    if (code == OK) code = converted(column, column->kept, some, few, out);
    if (code) return code;
  }
  return OK;
}

/* Reads `rows` rows, some of which may be null: these get `filler`, or zeros, and 0 in `defined`. OTHER: there are nulls, and
 * neither of the two is given. */
static int read_with_nulls(
    Group *group, Column *column, int64_t rows, uint8_t *out, uint8_t *defined, const uint8_t *filler) {
  static const uint8_t zero[16];
  uint8_t some[BLOCK], narrow_values[(BLOCK + 1) * 16];
  if (column->values_left == column->left) {
    if (defined) memset(defined, 1, (size_t)rows);
    return read_values(group, column, rows, out);
  }
  if (out && !defined && !filler) return OTHER;
  for (int64_t left = column->left; rows > 0;) {
    int64_t count = rows < BLOCK ? rows : BLOCK, values = 0;
    int code = read_levels(&column->levels, left, count, 1, some);
    if (code) return code;
    for (int64_t i = 0; i < count; i++) values += some[i];
    int is_apart = values < count && column->out <= 16;
    if ((code = read_values(group, column, values, out && is_apart ? narrow_values : out))) return code;
    if (out && values < count)
      spread(is_apart ? narrow_values : out, values, some, count, filler ? filler : zero, column->out, out);
    if (defined) {
      memcpy(defined, some, (size_t)count);
      defined += count;
    }
    if (out) out += count * column->out;
    rows -= count, left -= count;
  }
  return OK;
}

static int read_rows(
    Group *group, Column *column, int64_t rows, uint8_t *out, uint8_t *defined, const uint8_t *filler) {
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

/* As `read_rows`, for rows of `each` values: row i is written to row `slots[i]` of `out`. */
static int read_to_slots(
    Group *group, Column *column, int64_t rows, int64_t each, uint8_t *out, const int64_t *slots, const uint8_t *filler) {
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
    Group *group, const Column *column, const Runs *runs, int64_t number, int64_t at, int64_t stop, uint8_t **out) {
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

/* As `read_rows`, for the rows of runs. The values between runs are skipped, or decoded and left out. */
static int read_runs(Group *group, Column *column, const Runs *runs, uint8_t *out, const uint8_t *filler) {
  const int64_t width = column->out, most = SCRATCH_BYTES / width + 1, last = runs->end * runs->each;
  uint8_t *const begin = out;
  const int in_pieces = runs->pieces && runs->each == 1 && width <= 16 && (width & (width - 1)) == 0;
  int64_t at = 0, number = 0, piece = 0;
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
    int is_whole = column->values_left == column->left && is_as_stored(column);
    if (is_whole && column->kind == IN_FILE && width >= READ_APART) {
      code = fetch_runs(group, column, runs, number, at, stop, &out);
      if (code == OK) code = read_rows(group, column, stop - at, NULL, NULL, NULL);
    } else if (in_pieces && column->kind == CODED && column->values_left == column->left) {
      uint8_t *to = begin + rows_before(runs, piece, at) * width;
      code = look_up_rows(column, stop - at, to, runs, at, &piece);
      column->left = column->values_left -= stop - at;
    } else {
      const int is_there = is_whole && column->kind == IN_MEMORY;
      const uint8_t *in = is_there ? column->next : group->scratch.bytes;
      if (!is_there && stop > at + most) stop = at + most;
      code = read_rows(group, column, stop - at, is_there ? NULL : group->scratch.bytes, NULL, filler);
      if (is_there) column->is_viewed = 1;
      if (code) break;
      if (in_pieces) piece = compact_pieces(runs, piece, at, stop, in, width, begin, 0);
      else out = compact(runs, number, at, stop, in, width, out);
    }
    number = first_run_behind(runs, number, stop);
    at = stop;
  }
  return code;
}

/* Writes the next rows, which are lists. FULL: there was space for some of them only. */
static int read_lists(Group *group, Column *column, ListRows *rows) {
  static const uint8_t zero[8];
  uint8_t flags[LIST_BLOCK], present[(LIST_BLOCK + 1) * 8];
  ListLevels *levels = column->lists;
  int code = OK, is_over = 0;
  while (code == OK && !is_over) {
    if (column->left == 0) {
      if (column->rows == 0) break;
      code = next_page(group, column);
      continue;
    }
    int64_t elements = 0, values = 0;
    if (levels->at == levels->count) {
      if ((code = lists_take_runs(levels, rows, &elements, &is_over))) break;
      values = elements;
      column->left -= elements;
      if (!elements && !is_over) {
        if (rows->capacity == rows->elements) return FULL;
        if ((code = lists_unpack(levels))) break;
      }
    }
    if (levels->at < levels->count) {
      if (rows->capacity - rows->elements < levels->count - levels->at) return FULL;
      int64_t begin = levels->at;
      if ((code = lists_take(levels, rows, flags, &elements, &values, &is_over))) break;
      column->left -= levels->at - begin;
    }
    uint8_t *out = rows->values + rows->elements * column->out;
    int is_whole = values == elements;
    if ((code = read_values(group, column, values, is_whole ? out : present))) break;
    if (!is_whole && !rows->are_values) return OTHER;
    if (is_whole) {
      if (rows->null_elements) memset(rows->are_values + rows->elements, 1, (size_t)elements);
    } else {
      if (!rows->null_elements) memset(rows->are_values, 1, (size_t)rows->elements);
      spread(present, values, flags, elements, zero, column->out, out);
      memcpy(rows->are_values + rows->elements, flags, (size_t)elements);
    }
    rows->elements += elements, rows->null_elements += elements - values;
  }
  if (code) return code;
  levels->rows -= rows->rows;
  /* The last row ends with the chunk. */
  return rows->rows_done == rows->rows && levels->rows >= 0 && (levels->rows > 0) == is_over ? OK : OTHER;
}

EXPORT void chunks_close(void *chunks);

/* Releases the views that `chunks_read` delivered. Up to two page buffers are kept for reuse. */
EXPORT void chunks_release(void *chunks) {
  Group *group = chunks;
  for (int64_t i = 0; i < group->count; i++) group->columns[i].is_viewed = 0;
  while (group->viewed.count) {
    Buffer *buffer = &group->viewed.buffers[--group->viewed.count];
    int is_kept = group->spare.count < 2 && buffer->capacity <= MOST_SPARE_BYTES;
    if (!is_kept || put(&group->spare, buffer)) release(buffer);
  }
}

/* Writes three numbers for each column: the address of the views of its dictionary's entries, the number of entries, and
 * the bytes of all. Zeros: there is no dictionary. Views of `chunks_read` may refer to these entries. */
EXPORT void chunks_dictionaries(void *chunks, int64_t *out) {
  Group *group = chunks;
  for (int64_t i = 0; i < group->count; i++, out += 3) {
    const Column *column = &group->columns[i];
    const int is_there = is_byte_array(column) && column->entries >= 0;
    out[0] = is_there ? (int64_t)(uintptr_t)column->entry_views.bytes : 0;
    out[1] = is_there ? column->entries : 0;
    out[2] = is_there ? column->entry_bytes : 0;
  }
}

/* Opens column chunks to be read forward. Returns NULL if there is no memory. Each of `count` lines has 14 numbers:
 *
 *  0  offset of the chunk in the file
 *  1  offset of its end
 *  2  values
 *  3  bytes of a value
 *  4  how many low bytes of a value to decode
 *  5  codec
 *  6  definition level of a value
 *  7  encodings that the footer names, one bit for each
 *  8  physical type
 *  9  whether pages of version 2 are always compressed
 * 10  values per row if rows are lists of one length without nulls, 0 if rows are values; with number 11: rows
 * 11  definition level of an element if rows are lists of any length, else 0
 * 12  conversion of decimals or INT96 timestamps, see `decimals.h` and `timestamps.h`
 * 13  limit for the bytes of a decompressed page of byte arrays
 */
EXPORT void *chunks_open(int file, const uint8_t *base, int64_t size, const int64_t *lines, int64_t count) {
  Group *group = calloc(1, sizeof(Group) + (size_t)count * sizeof(Column));
  if (!group) return NULL;
  group->source = (FileBytes){file, base, size};
  group->count = count;
  for (int64_t i = 0; i < count; i++, lines += 14) {
    Column *column = &group->columns[i];
    column->at = lines[0], column->end = lines[1], column->rows = lines[2];
    column->width = lines[3], column->kept = lines[4], column->conversion = lines[12];
    column->out = column->conversion == WIDE_DECIMALS ? DECIMAL_BYTES : column->conversion ? 8 : column->kept;
    column->codec = (int)lines[5], column->optional = (int)lines[6];
    column->encodings = lines[7], column->physical = (int)lines[8], column->always_compressed = (int)lines[9];
    column->most_page_bytes = lines[13] < INT32_MAX ? lines[13] : INT32_MAX;
    column->entries = -1;
    if (!lines[11]) {
      column->list_values = lines[10];
      continue;
    }
    column->lists = calloc(1, sizeof(ListLevels));
    if (!column->lists) {
      chunks_close(group);
      return NULL;
    }
    column->lists->of_element = (int)lines[11], column->lists->most = column->optional, column->lists->rows = lines[10];
  }
  return group;
}

/* Reads the next `rows` rows of each column, except lists of any length. Byte arrays are delivered as views, which are valid
 * until the next call. By column:
 *
 * `outs`: where to write the values, or NULL to skip them.
 * `defined`: where to write 1 for each value and 0 for each null, or NULL.
 * `fillers`: 16 bytes, of which the first ones replace a null, or NULL. A column with nulls needs one of the two.
 * `slots`: the row of `outs` to which each row goes, from row `begin` on, deleted rows included; NULL: in order.
 * `refused`: 1 if the column is not to be read; set to 1 if the column cannot be decoded, and its rows are undefined.
 *
 * `outs`, `defined`, `fillers` and `slots` may be NULL for all columns. If `deleted` is not NULL, the first `begin` rows are
 * skipped and the others are written without the deleted ones. Their numbers are sorted, and `position` is the number of
 * the next row. Then each column has `outs` and no `defined`, and neither row `begin` nor the last row is deleted.
 *
 * OTHER: a column was newly refused; the others were read. SYSTEM: nothing more can be read. */
EXPORT int chunks_read(
    void *chunks, int64_t rows, const int64_t *deleted, int64_t deleted_count, int64_t begin, int64_t position,
    uint8_t *const *outs, uint8_t *const *defined, const uint8_t *const *fillers, const int64_t *const *slots,
    uint8_t *refused) {
  Group *group = chunks;
  int result = OK;
  Runs runs = {deleted, deleted_count, begin, rows, position, 1, NULL, 0};
  if (deleted && divide_runs(&group->pieces, &runs)) runs.pieces = NULL;
  chunks_release(chunks);
  for (int64_t i = 0; i < group->count; i++) {
    Column *column = &group->columns[i];
    if (refused[i] || column->lists) continue;  /* see `lists_read` */
    int is_array = is_byte_array(column);
    if (!is_array) {
      hand_over(&group->page, &column->page);
      hand_over(&group->dictionary, &column->dictionary);
    }
    int64_t each = column->list_values ? column->list_values : 1;
    uint8_t *out = outs ? outs[i] : NULL, *flags = defined ? defined[i] : NULL;
    const uint8_t *filler = fillers ? fillers[i] : NULL;
    runs.each = each;
    int code = OTHER;
    if (rows > INT64_MAX / 8 / each) {
      /* refused */
    } else if (slots && slots[i]) {
      code = read_rows(group, column, begin * each, NULL, NULL, NULL);
      if (code == OK) code = read_to_slots(group, column, rows - begin, each, out, slots[i], filler);
    } else if (deleted) {
      code = read_runs(group, column, &runs, out, filler);
    } else {
      code = read_rows(group, column, rows * each, out, flags, filler);
    }
    if (code == SYSTEM) return code;
    if (code) {
      refused[i] = 1;
      result = OTHER;
    }
    if (!is_array && (code || (column->rows == 0 && column->left == 0))) {
      hand_over(&column->page, &group->page);
      hand_over(&column->dictionary, &group->dictionary);
      column->entries = -1;
    }
  }
  return result;
}

/* Reads the next rows of a column of lists of any length. FULL: `rows` has too little space for elements; the next call, with
 * more space, continues. Other codes: nothing more can be read from this column. */
EXPORT int lists_read(void *chunks, int64_t number, ListRows *rows) {
  Group *group = chunks;
  Column *column = &group->columns[number];
  hand_over(&group->page, &column->page);
  hand_over(&group->dictionary, &column->dictionary);
  int code = read_lists(group, column, rows);
  if ((code && code != FULL) || (column->rows == 0 && column->left == 0)) {
    hand_over(&column->page, &group->page);
    hand_over(&column->dictionary, &group->dictionary);
    column->entries = -1;
  }
  return code;
}

EXPORT void chunks_close(void *chunks) {
  Group *group = chunks;
  for (int64_t i = 0; i < group->count; i++) {
    Column *column = &group->columns[i];
    release(&column->page);
    release(&column->dictionary);
    release(&column->joined);
    release(&column->views);
    release(&column->entry_views);
    free(column->lists);
  }
  clear(&group->viewed);
  clear(&group->spare);
  release_decompressors(&group->decompressors);
  release(&group->raw);
  release(&group->page);
  release(&group->dictionary);
  release(&group->scratch);
  release(&group->pieces);
  free(group);
}
