/* Spreads values over rows, some of which are null. */
#ifndef SPREAD_H
#define SPREAD_H

#include <stdint.h>

#define SPREAD_SLACK 32  /* bytes behind the values that may be read */

/* Writes the next of `values` for each row whose byte in `defined` is 1, and `filler` for rows whose byte is 0. `filler`: 16
 * bytes; wider nulls are zeros. `values` may be `out`. */
void spread(
    const uint8_t *values, int64_t value_count, const uint8_t *defined, int64_t rows, const uint8_t *filler,
    int64_t width, uint8_t *out);

#endif
