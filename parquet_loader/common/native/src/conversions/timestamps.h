/* Timestamps stored as INT96: nanoseconds of the day (8 bytes), then the Julian day (4 bytes). */
#ifndef TIMESTAMPS_H
#define TIMESTAMPS_H

#include <stdint.h>

/* Converts `count` timestamps to `out`, 8 bytes each. OTHER: one is on a day that does not fit as a whole into int64
 * nanoseconds, or its time is a day or more from it. */
int convert_int96(const uint8_t *in, int64_t count, uint8_t *out);

#endif
