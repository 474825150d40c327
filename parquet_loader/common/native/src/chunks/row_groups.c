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

/* Reads all rows of `count` row groups with the same columns. By row group:
 *
 * `files`: four numbers, the address of the file's path, its size and `mtime_ns` as in `chunks_open`, and the rows.
 * `lines`: for each column, the numbers for `chunks_open`.
 * `outs`, `defined`: for each column, the addresses for `chunks_read`; `defined` may be NULL.
 * `opened`: gets what holds its pages, and so the views of byte arrays, until `row_groups_close`.
 *
 * `fillers` are as in `chunks_read`, and `refused` is a byte for each column, which is overwritten. Returns OK, or OTHER if a
 * file differs from its listing, cannot be read, or has a column that cannot be decoded: then all rows are undefined. */
EXPORT int row_groups_read(
    const int64_t *files, const int64_t *lines, int64_t count, int64_t columns, uint8_t *const *outs,
    uint8_t *const *defined, const uint8_t *const *fillers, uint8_t *refused, void **opened) {
  memset(refused, 0, (size_t)columns);
  memset(opened, 0, (size_t)count * sizeof *opened);
  for (int64_t i = 0; i < count; i++, files += 4, lines += 16 * columns, outs += columns) {
    int problem, is_read;
    opened[i] = chunks_open(ADDRESS(const char, files[0]), files[1], files[2], NULL, lines, columns, &problem);
    if (i && opened[i]) hand_on(opened[i - 1], opened[i]);
    is_read = opened[i] && !problem &&
              !chunks_read(opened[i], files[3], NULL, 0, 0, 0, outs, defined, fillers, NULL, refused) &&
              leave_file(opened[i]);
    if (!is_read) {
      row_groups_close(opened, count);
      return OTHER;
    }
    if (defined) defined += columns;
  }
  return OK;
}
