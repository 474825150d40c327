/* Decimals: integers that are divided by a power of ten, their scale. */
#ifndef DECIMALS_H
#define DECIMALS_H

#include <stdint.h>

#include "conversions.h"

/* The most bytes of an integer, and the highest scale. */
enum { DECIMAL_BYTES = 16, MOST_SCALE = 38 };

/* Converts `count` integers of `width` bytes by WIDE_DECIMALS or NEAREST_DECIMALS; to float32 if `out_width` is 4, by way of the nearest float64. OTHER: an
 * integer is too long for this processor. */
int convert_decimals(
    const uint8_t *in, int64_t width, int is_big_endian, int64_t count, int64_t kind, uint8_t *out, int64_t out_width);

#endif
