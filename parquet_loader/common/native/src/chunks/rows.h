/* Reads rows of column chunks, page by page. */
#ifndef ROWS_H
#define ROWS_H

#include "alive_rows.h"
#include "column.h"

/* Writes the next non-null values of a page, or skips them if `out` is NULL. */
int read_values(RowGroup *group, Column *column, int64_t count, uint8_t *out);

/* Writes the next rows, or skips them if `out` is NULL. Nulls get `filler`, or zeros, and 0 in `defined`. OTHER: there are
 * nulls, and neither of the two is given. */
int read_rows(RowGroup *group, Column *column, int64_t rows, uint8_t *out, uint8_t *defined, const uint8_t *filler);

/* As `read_rows`, for rows of `each` values: row i is written to row `slots[i]` of `out`. */
int read_to_slots(
    RowGroup *group, Column *column, int64_t rows, int64_t each, uint8_t *out, const int64_t *slots, const uint8_t *filler);

/* As `read_rows`, for the rows of runs. The values between runs are skipped, or decoded and left out. */
int read_runs(
    RowGroup *group, Column *column, const Runs *runs, uint8_t *out, uint8_t *defined, const uint8_t *filler);

#endif
