/* Small row groups, each read as a whole. */
#include "column.h"
#include "column_chunks.h"

#include <unistd.h>

/* Closes the file of opened chunks; their pages stay. Returns whether the path still names the file as it was listed. */
static int leave_file(RowGroup *group) {
  const int is_same = is_still_listed(&group->listed);
  close(group->source.file);
  group->source.file = -1, group->listed.path = NULL;
  return is_same;
}

/* Hands on what row groups need only while they are read, so that many that are open hold no more of it than one. */
static void hand_on(RowGroup *from, RowGroup *to) {
  to->decompressors = from->decompressors;
  from->decompressors = (Decompressors){NULL, NULL};
  hand_over(&from->raw, &to->raw);
  hand_over(&from->page, &to->page);
  hand_over(&from->dictionary, &to->dictionary);
  hand_over(&from->scratch, &to->scratch);
}

/* Releases the pages of row groups, and so the views of their byte arrays. */
EXPORT void row_groups_close(void **opened, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    if (opened[i]) chunks_close(opened[i]);
    opened[i] = NULL;
  }
}

/* Opens the chunks of a row group whose file is as it was listed: `file` and `lines` are those of one row group, see
 * `row_groups_read`. They take over from `before`, which may be NULL, what they need only while they are read. */
static RowGroup *open_next(const int64_t *file, const int64_t *lines, int64_t columns, RowGroup *before) {
  int problem;
  RowGroup *group = chunks_open(ADDRESS(const char, file[0]), file[1], file[2], NULL, lines, columns, &problem);
  if (group && before) hand_on(before, group);
  if (!group || !problem) return group;
  chunks_close(group);
  return NULL;
}

/* Reads all rows of `count` row groups with the same columns. By row group:
 *
 * `files`: four numbers, the address of the file's path, its size and `mtime_ns` as in `chunks_open`, and the rows.
 * `lines`: for each column, the numbers for `chunks_open`.
 * `outs`, `defined`, `slots`: for each column, the addresses for `chunks_read`; `defined` may be NULL.
 * `opened`: gets what holds its pages, and so the views of byte arrays, until `row_groups_close`.
 *
 * `fillers` and `staging` are as in `chunks_read`, and `refused` is a byte for each column, which is overwritten. Returns OK,
 * or OTHER if a file differs from its listing, cannot be read, or has a column that cannot be decoded: then all rows are
 * undefined. */
EXPORT int row_groups_read(
    const int64_t *files, const int64_t *lines, int64_t count, int64_t columns, uint8_t *const *outs,
    uint8_t *const *defined, const uint8_t *const *fillers, const int64_t *const *slots, Staging *const *staging,
    uint8_t *refused, void **opened) {
  memset(refused, 0, (size_t)columns);
  memset(opened, 0, (size_t)count * sizeof *opened);
  for (int64_t i = 0; i < count; i++, files += 4, lines += 16 * columns, outs += columns, slots += columns) {
    opened[i] = open_next(files, lines, columns, i ? opened[i - 1] : NULL);
    if (!opened[i] ||
        chunks_read(
            opened[i], files[3], NULL, 0, 0, 0, outs, defined, fillers, slots, staging, files[3], refused) ||
        !leave_file(opened[i])) {
      row_groups_close(opened, count);
      return OTHER;
    }
    if (defined) defined += columns;
  }
  return OK;
}

/* Reads all rows of one column of lists; `rows` has space for them. The first elements of lists are counted from `before`. */
static int read_whole_lists(RowGroup *group, int64_t number, int64_t before, ListRows *rows) {
  const int code = lists_read(group, number, rows);
  if (code || rows->null_rows) return OTHER;
  for (int64_t i = 0; i < rows->rows; i++) rows->offsets[i] += before;
  return OK;
}

/* Reads all rows of `count` row groups whose columns are lists of any length. `files` and `lines` are as in `row_groups_read`.
 * By column:
 *
 * `values`: where to write the elements, with space for the third number of each of its lines.
 * `offsets`: where to write the first element of each list of all row groups, and the number of all elements behind.
 *
 * `are_lists` has space for the rows of the largest row group. Returns OK, or OTHER as `row_groups_read`, and if there are
 * nulls. */
EXPORT int row_groups_lists(
    const int64_t *files, const int64_t *lines, int64_t count, int64_t columns, uint8_t *const *values,
    int64_t *const *offsets, uint8_t *are_lists) {
  RowGroup *group = NULL;
  int64_t rows_before = 0;
  int code = OK;
  for (int64_t c = 0; c < columns; c++) offsets[c][0] = 0;
  for (int64_t i = 0; i < count && code == OK; i++, files += 4) {
    RowGroup *next = open_next(files, lines, columns, group);
    if (group) chunks_close(group);
    group = next;
    if (!group) return OTHER;
    for (int64_t c = 0; c < columns && code == OK; c++, lines += 16) {
      int64_t *const begins = offsets[c] + rows_before, before = begins[0];
      ListRows rows = {
          .offsets = begins, .are_lists = are_lists, .values = values[c] + before * lines[14], .rows = files[3],
          .capacity = lines[2]};
      code = read_whole_lists(group, c, before, &rows);
      begins[files[3]] = before + rows.elements;
    }
    rows_before += files[3];
    if (code == OK && !leave_file(group)) code = OTHER;
  }
  if (group) chunks_close(group);
  return code;
}
