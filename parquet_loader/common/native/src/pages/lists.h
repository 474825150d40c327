/* Divides values into lists of any length, one in each row, by their levels. */
#ifndef LISTS_H
#define LISTS_H

#include <stdint.h>

#include "levels.h"

enum { LIST_BLOCK = 1024 };  /* levels unpacked at a time */

/* The levels of a page, read forward. Definition levels: below `of_element` - 1 a null list, `of_element` - 1 an empty list,
 * from `of_element` on an element: `most` is a value, and a lower level a null. */
typedef struct {
  int of_element, most;
  Levels repetitions, definitions;
  int64_t packed;     /* levels of the page that are still packed */
  int64_t at, count;  /* the next level of the unpacked block, and all its levels */
  int is_open;        /* the next level may continue a list */
  int64_t rows;       /* rows of the column chunk that were not read yet */
  uint8_t repeated[LIST_BLOCK], defined[LIST_BLOCK];
} ListLevels;

/* Output memory for lists. */
typedef struct {
  int64_t *offsets;     /* the first element of each of `rows` lists */
  uint8_t *are_lists;   /* 0 for each null list */
  uint8_t *values;      /* the elements, 0 for nulls */
  uint8_t *are_values;  /* 0 for each null element; undefined without null elements; NULL: null elements are refused */
  int64_t rows, capacity;     /* space for lists, and for elements */
  int64_t rows_done, elements;
  int64_t null_rows, null_elements;
} ListRows;

/* Begins the levels of a page; returns how many of them are values, or -1 if they do not add up. `rows`: how many lists begin
 * in the page, the first one with its first level; -1 if that is not known and the page may continue a list. */
int64_t lists_begin_page(
    ListLevels *levels, const uint8_t *repetitions, const uint8_t *repetitions_end, const uint8_t *definitions,
    const uint8_t *definitions_end, int64_t count, int64_t rows);

/* Whether one run says that all levels of a page that was just begun are values. */
int lists_are_values(ListLevels *levels);

/* Takes packed levels up to the end of the wanted rows or of the space for elements, as far as runs of definition levels say
 * that they are values: that takes no time for a value. The unpacked block must be at its end. `elements` gets the number of
 * values; `is_over` and the result as in `lists_take`. */
int lists_take_runs(ListLevels *levels, ListRows *rows, int64_t *elements, int *is_over);

/* Unpacks the next block. */
int lists_unpack(ListLevels *levels);

/* Takes levels up to the end of the block or of the wanted rows; `is_over`: the next level begins a further row. `flags` gets 1
 * for each of `elements` that is a value, and 0 for a null; `values` gets how many are. OTHER: the levels are not valid. */
int lists_take(
    ListLevels *levels, ListRows *rows, uint8_t *flags, int64_t *elements, int64_t *values, int *is_over);

#endif
