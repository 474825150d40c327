/* Values that pages store as codes of a dictionary. */
#ifndef CODED_VALUES_H
#define CODED_VALUES_H

#include "alive_rows.h"
#include "column.h"

/* Writes the values of the next codes of a page. If `runs` is not NULL, these are the rows `at` to `at` + `rows`, and only
 * rows in pieces, from piece `*number` on, are written. */
int look_up_rows(Column *column, int64_t rows, uint8_t *out, const Runs *runs, int64_t at, int64_t *number);

#endif
