/* Timestamps stored as INT96: nanoseconds of the day (8 bytes), then the Julian day (4 bytes). */
#ifndef TIMESTAMPS_H
#define TIMESTAMPS_H

#include <stdint.h>

/* Conversion of a column to nanoseconds since 1970, int64; a number apart from the conversions in `decimals.h`. */
enum { INT96_TIMESTAMPS = 64 };

/* Converts `count` timestamps to `out`, 8 bytes each. OTHER: one is on a day that does not fit as a whole into int64
 * nanoseconds, or its time is outside the day. */
int convert_int96(const uint8_t *in, int64_t count, uint8_t *out);

#endif
