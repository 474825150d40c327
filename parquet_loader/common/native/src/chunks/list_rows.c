#include "list_rows.h"

#include "../pages/spread.h"
#include "next_page.h"
#include "rows.h"

int read_lists(RowGroup *group, Column *column, ListRows *rows) {
  static const uint8_t zero[16];
  uint8_t flags[LIST_BLOCK], present[LIST_BLOCK * 8 + SPREAD_SLACK];
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
