/* Decimals: integers that are divided by a power of ten, their scale. */
#ifndef DECIMALS_H
#define DECIMALS_H

#include <stdint.h>

/* The most bytes of an integer, and the highest scale. */
enum { DECIMAL_BYTES = 16, MOST_SCALE = 38 };

/* What becomes of a column: nothing; decimals of 16 bytes, little-endian; or the nearest float64, for a scale of 0 to
 * MOST_SCALE, which is added to the last. */
enum { NO_DECIMALS = 0, WIDE_DECIMALS = 1, NEAREST_DECIMALS = 2 };

/* Converts `count` integers of `width` bytes. OTHER: some are too long to be converted here. */
int convert_decimals(const uint8_t *in, int64_t width, int is_big_endian, int64_t count, int64_t kind, uint8_t *out);

#endif
