/* Reads footers as plain numbers: of the file, of each row group and of each column chunk. */
#include <stdint.h>
#include <string.h>

#include "kernels.h"
#include "thrift.h"

/* Keep in step with `parquet_loader/source/metadata.py`, which does the same in Python. */
enum { FILE_NUMBERS = 12, GROUP_NUMBERS = 3, CHUNK_NUMBERS = 21 };
enum { ELSEWHERE = 1, ENCRYPTED = 2 };

typedef struct {
  Thrift t;
  const uint8_t *begin;
  int64_t *file, *groups, *chunks;
  int64_t group_capacity, chunk_capacity;
} Footer;

/* Skips a byte string; returns its offset, and its length in `nbytes`. */
static int64_t thrift_span(Footer *footer, int64_t *nbytes) {
  Thrift *t = &footer->t;
  uint64_t size = thrift_varint(t);
  int64_t at = t->next - footer->begin;
  if (!is_going(t)) return 0;
  thrift_skip_bytes(t, size);
  *nbytes = (int64_t)size;
  return at;
}

static void footer_statistics(Footer *footer, int64_t *chunk) {
  Thrift *t = &footer->t;
  int64_t field = 0;
  uint64_t seen = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    /* old maximum and minimum, then the new ones */
    int to = field == 1 ? 16 : field == 2 ? 14 : field == 5 ? 12 : field == 6 ? 10 : 0;
    if (to && kind == KIND_BINARY) chunk[to] = thrift_span(footer, &chunk[to + 1]);
    else if (field == 3 && kind == KIND_I64) chunk[9] = thrift_int(t);
    else thrift_skip(t, kind, 0);
  }
}

static void footer_sizes(Footer *footer, int64_t *chunk) {
  Thrift *t = &footer->t;
  int64_t field = 0;
  uint64_t seen = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    if (field == 1 && kind == KIND_I64) chunk[20] = thrift_int(t);
    else thrift_skip(t, kind, 0);
  }
}

static void footer_column(Footer *footer, int64_t *chunk) {
  Thrift *t = &footer->t;
  int64_t field = 0;
  uint64_t seen = 0, found = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    int to = field == 5 ? 3 : field == 6 ? 4 : field == 7 ? 5 : field == 9 ? 6 : field == 11 ? 7 : 0;
    if (to && kind == KIND_I64) chunk[to] = thrift_int(t);
    else if (field == 1 && kind == KIND_I32) chunk[0] = thrift_int32(t);
    else if (field == 4 && kind == KIND_I32) chunk[1] = thrift_int32(t);
    else if (field == 2 && kind == KIND_LIST) {
      for (int64_t count = thrift_list(t, KIND_I32); count > 0 && is_going(t); count--) {
        int64_t encoding = thrift_int32(t);
        chunk[2] |= INT64_C(1) << (encoding >= 0 && encoding < 62 ? encoding : 62);
      }
    } else if (field == 12 && kind == KIND_STRUCT) footer_statistics(footer, chunk);
    else if (field == 16 && kind == KIND_STRUCT) footer_sizes(footer, chunk);
    else {
      thrift_skip(t, kind, 0);
      if (field != 3 || kind != KIND_LIST) continue;
    }
    found |= UINT64_C(1) << field;
  }
  const uint64_t required = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9;
  if ((found & required) != required) t->is_wrong = 1;
}

static void footer_chunk(Footer *footer) {
  Thrift *t = &footer->t;
  int64_t field = 0, chunk[CHUNK_NUMBERS] = {-1, -1, 0, 0, 0, 0, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, -1, 0, -1};
  uint64_t seen = 0;
  int kind, is_described = 0;
  while (next_field(t, &field, &seen, &kind)) {
    if (field == 3 && kind == KIND_STRUCT) footer_column(footer, chunk), is_described = 1;
    else if (field == 4 && kind == KIND_I64) chunk[18] = thrift_int(t);
    else if (field == 5 && kind == KIND_I32) chunk[19] = thrift_int32(t);
    else if (field == 1 && kind == KIND_BINARY) {
      const uint64_t nbytes = thrift_varint(t);
      if (nbytes) chunk[8] |= ELSEWHERE;  /* an empty path is this file */
      thrift_skip_bytes(t, nbytes);
    } else {
      if ((field == 8 && kind == KIND_STRUCT) || (field == 9 && kind == KIND_BINARY)) chunk[8] |= ENCRYPTED;
      thrift_skip(t, kind, 0);
    }
  }
  if (!is_described && !(chunk[8] & ENCRYPTED)) t->is_wrong = 1;
  int64_t at = footer->file[2]++;
  if (at < footer->chunk_capacity) memcpy(footer->chunks + at * CHUNK_NUMBERS, chunk, sizeof chunk);
}

static void footer_group(Footer *footer) {
  Thrift *t = &footer->t;
  int64_t field = 0, group[GROUP_NUMBERS] = {0, 0, 0};
  uint64_t seen = 0, found = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    if (field == 1 && kind == KIND_LIST) {
      group[2] = thrift_list(t, KIND_STRUCT);
      for (int64_t count = group[2]; count > 0 && is_going(t); count--) footer_chunk(footer);
    } else if (field == 2 && kind == KIND_I64) group[1] = thrift_int(t);
    else if (field == 3 && kind == KIND_I64) group[0] = thrift_int(t);
    else {
      thrift_skip(t, kind, 0);
      continue;
    }
    found |= UINT64_C(1) << field;
  }
  if (found != (1 << 1 | 1 << 2 | 1 << 3)) t->is_wrong = 1;
  int64_t at = footer->file[1]++;
  if (at < footer->group_capacity) memcpy(footer->groups + at * GROUP_NUMBERS, group, sizeof group);
}

/* Reads a footer of `nbytes` bytes.
 *
 * `file` gets 12 numbers: rows; row groups; column chunks; begin and end of the schema; of the keys and values, 0 without
 * any; whether the file is encrypted; begin and end of the column orders; and of the writer's name.
 * `groups` gets rows, bytes and columns of each row group. `chunks`: see `footer_chunk`.
 * Row groups and chunks beyond the capacities are only counted.
 *
 * ENDED: the footer is longer than `nbytes`. OTHER: these bytes are not a footer. */
EXPORT int footer_read(
    const uint8_t *bytes, int64_t nbytes, int64_t *file, int64_t *groups, int64_t group_capacity, int64_t *chunks,
    int64_t chunk_capacity) {
  Footer footer = {{bytes, bytes + nbytes, 0, 0}, bytes, file, groups, chunks, group_capacity, chunk_capacity};
  Thrift *t = &footer.t;
  int64_t field = 0;
  uint64_t seen = 0, found = 0;
  int kind;
  memset(file, 0, FILE_NUMBERS * sizeof *file);
  while (next_field(t, &field, &seen, &kind)) {
    int64_t at = t->next - bytes;
    if (field == 3 && kind == KIND_I64) file[0] = thrift_int(t);
    else if (field == 1 && kind == KIND_I32) thrift_int32(t);
    else if (field == 4 && kind == KIND_LIST) {
      for (int64_t count = thrift_list(t, KIND_STRUCT); count > 0 && is_going(t); count--) footer_group(&footer);
    } else if (field == 6 && kind == KIND_BINARY) {
      file[10] = thrift_span(&footer, &file[11]);
      file[11] += file[10];
    } else {
      thrift_skip(&footer.t, kind, 0);
      if (field == 8 && kind == KIND_STRUCT) file[7] = 1;
      int to = kind == KIND_LIST ? (field == 2 ? 3 : field == 5 ? 5 : field == 7 ? 8 : 0) : 0;
      if (!to) continue;
      file[to] = at, file[to + 1] = t->next - bytes;
    }
    found |= UINT64_C(1) << field;
  }
  const uint64_t required = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4;
  if (t->is_short) return ENDED;
  return t->is_wrong || (found & required) != required ? OTHER : OK;
}
