/* Lists of numbers, one in each row, of any length: how levels divide values into rows. */
#ifndef LISTS_H
#define LISTS_H

#include <stdint.h>

#include "levels.h"

enum { LIST_BLOCK = 1024 };  /* levels unpacked at a time */

/* The levels of a page, which are read forward. A definition level of `of_element` - 1 is an empty list, a lower one none
 * at all; `most` is a value, and what is between them a null in a list. */
typedef struct {
  int of_element, most;
  Levels repetitions, definitions;
  int64_t packed;     /* levels of the page that are still packed */
  int64_t at, count;  /* of the block that is unpacked: the next level, and all */
  int is_open;        /* a level that continues a list may come next */
  int64_t rows;       /* of the column chunk that are still to come */
  uint8_t repeated[LIST_BLOCK], defined[LIST_BLOCK];
} ListLevels;

/* Where lists are written. */
typedef struct {
  int64_t *offsets;     /* of `rows` lists: the element at which each begins */
  uint8_t *are_lists;   /* for each, 0 if it is null */
  uint8_t *values;      /* of the elements, 0 for nulls */
  uint8_t *are_values;  /* for each, 0 if it is null */
  int64_t rows, capacity;     /* of lists and elements */
  int64_t rows_done, elements;
  int64_t null_rows, null_elements;
} ListRows;

/* Begins the levels of a page: how many of them are values; -1: they do not add up. `rows`: how many lists begin there, the
 * first one with it; -1: that is not known, and a list may continue. */
int64_t lists_begin_page(
    ListLevels *levels, const uint8_t *repetitions, const uint8_t *repetitions_end, const uint8_t *definitions,
    const uint8_t *definitions_end, int64_t count, int64_t rows);

/* Unpacks the next block. */
int lists_unpack(ListLevels *levels);

/* Takes levels of the block, until it or the wanted rows end; `is_over`: a further row begins. `flags`: for each of
 * `elements`, of which `values` are not null, whether it is a value. OTHER: no rows have such levels. */
int lists_take(
    ListLevels *levels, ListRows *rows, uint8_t *flags, int64_t *elements, int64_t *values, int *is_over);

#endif
