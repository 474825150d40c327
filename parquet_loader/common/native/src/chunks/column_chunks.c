/* Decodes column chunks of numbers and byte arrays: numbers to contiguous values, byte arrays to views of their pages.
 *
 * One call decodes some rows of many column chunks without the GIL. A page is accepted only if every level, run and
 * length in it adds up exactly. Otherwise (other encodings, damage) the call returns an error code, and Arrow decodes the
 * column chunk or reports the error. Every length comes from the file and is checked before it is used.
 *
 * Values are little-endian in files and here; `bindings.py` loads the kernels on little-endian machines only.
 */
#include "column_chunks.h"

#include <stdlib.h>

#include "column.h"
#include "list_rows.h"
#include "rows.h"

#define MOST_SPARE_BYTES (1 << 22)  /* limit for a page buffer that is kept for reuse */

/* Releases the views that `chunks_read` delivered. Up to two page buffers are kept for reuse. */
EXPORT void chunks_release(void *chunks) {
  RowGroup *group = chunks;
  for (int64_t i = 0; i < group->count; i++) group->columns[i].is_viewed = 0;
  while (group->viewed.count) {
    Buffer *buffer = &group->viewed.buffers[--group->viewed.count];
    int is_kept = group->spare.count < 2 && buffer->capacity <= MOST_SPARE_BYTES;
    if (!is_kept || shelve(&group->spare, buffer)) release(buffer);
  }
}

/* Writes three numbers for each column: the address of the views of its dictionary's entries, the number of entries, and
 * the bytes of all. Zeros: there is no dictionary. Views of `chunks_read` may refer to these entries. */
EXPORT void chunks_dictionaries(void *chunks, int64_t *out) {
  RowGroup *group = chunks;
  for (int64_t i = 0; i < group->count; i++, out += 3) {
    const Column *column = &group->columns[i];
    const int is_there = is_byte_array(column) && column->entries >= 0 && !column->vocabulary;
    out[0] = is_there ? (int64_t)(uintptr_t)column->entry_views.bytes : 0;
    out[1] = is_there ? column->entries : 0;
    out[2] = is_there ? column->entry_bytes : 0;
  }
}

/* Opens column chunks to be read forward: of the file at `path`, or of the `size` bytes at `base`. The text of `path` is
 * used until `chunks_close`. `size` and `mtime_ns` are those of the file when it was listed; `problem` is set to 1 if the
 * file differs from that, else to 0. Returns NULL if the file cannot be opened, with the error's number in `problem`, or if
 * there is no memory, with 0. Each of `count` lines has 16 numbers:
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
 * 12  conversion of the values, see `conversions.h`
 * 13  limit for the bytes of a decompressed page of byte arrays
 * 14  bytes of a delivered value
 * 15  address of the vocabulary of byte arrays that become codes, else 0
 */
EXPORT void *chunks_open(
    const char *path, int64_t size, int64_t mtime_ns, const uint8_t *base, const int64_t *lines, int64_t count,
    int *problem) {
  RowGroup *group = calloc(1, sizeof(RowGroup) + (size_t)count * sizeof(Column));
  *problem = 0;
  if (!group) return NULL;
  group->source = (FileBytes){-1, base, size};
  if (path) {
    int is_same = 0;
    group->listed = (ListedFile){path, size, mtime_ns};
    if ((*problem = open_listed(&group->listed, &group->source, &is_same))) {
      chunks_close(group);
      return NULL;
    }
    *problem = !is_same;
  }
  group->count = count;
  for (int64_t i = 0; i < count; i++, lines += 16) {
    Column *column = &group->columns[i];
    column->at = lines[0], column->end = lines[1], column->rows = lines[2];
    column->width = lines[3], column->kept = lines[4], column->conversion = lines[12];
    column->out = lines[14], column->vocabulary = ADDRESS(const Vocabulary, lines[15]);
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
      *problem = 0;
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
 * `staging`: where pages of byte arrays are decompressed that have no rows after the next `staged_rows`, or NULL. Views of
 *   them are valid as long as this memory.
 * `slots`: the row of `outs` to which each row goes, from row `begin` on, deleted rows included; NULL: in order.
 * `refused`: 1 if the column is not to be read; set to 1 if the column cannot be decoded, and its rows are undefined.
 *
 * `outs`, `defined`, `fillers`, `slots` and `staging` may be NULL for all columns. If `deleted` is not NULL, the first `begin`
 * rows are skipped and the others are written without the deleted ones. Their numbers are sorted, and `position` is the number
 * of the next row. Then each column has `outs`, and neither row `begin` nor the last row is deleted. A column with `slots` has
 * no `defined`.
 *
 * OTHER: a column was newly refused; the others were read. SYSTEM: nothing more can be read. */
EXPORT int chunks_read(
    void *chunks, int64_t rows, const int64_t *deleted, int64_t deleted_count, int64_t begin, int64_t position,
    uint8_t *const *outs, uint8_t *const *defined, const uint8_t *const *fillers, const int64_t *const *slots,
    Staging *const *staging, int64_t staged_rows, uint8_t *refused) {
  RowGroup *group = chunks;
  int result = OK;
  Runs runs = {deleted, deleted_count, begin, rows, position, 1, NULL, 0};
  if (deleted && divide_runs(&group->pieces, &runs)) runs.pieces = NULL;
  chunks_release(chunks);
  for (int64_t i = 0; i < group->count; i++) {
    Column *column = &group->columns[i];
    if (refused[i] || column->lists) continue;  /* see `lists_read` */
    int is_array = is_byte_array(column) && !column->vocabulary;  /* views of its pages are delivered */
    column->staging = staging && is_array ? staging[i] : NULL;
    column->rows_behind = column->rows + column->left - staged_rows;
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
      code = read_runs(group, column, &runs, out, flags, filler);
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
  RowGroup *group = chunks;
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

/* Returns whether the path still names the file as it was listed. */
EXPORT int chunks_close(void *chunks) {
  RowGroup *group = chunks;
  const int is_same = group->listed.path && is_still_listed(&group->listed);
  if (group->source.file >= 0) close(group->source.file);
  for (int64_t i = 0; i < group->count; i++) {
    Column *column = &group->columns[i];
    release(&column->page);
    release(&column->dictionary);
    release(&column->joined);
    release(&column->views);
    release(&column->entry_views);
    free(column->lists);
  }
  release_shelf(&group->viewed);
  release_shelf(&group->spare);
  release_decompressors(&group->decompressors);
  release(&group->raw);
  release(&group->page);
  release(&group->dictionary);
  release(&group->scratch);
  release(&group->pieces);
  free(group);
  return is_same;
}
