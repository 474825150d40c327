/* Numbers of one type as numbers of another, if no value changes by more than rounding to fewer digits. */
#ifndef CASTS_H
#define CASTS_H

#include <stdint.h>

/* Conversion of a column: CASTS + TYPES * (the stored type) + (the delivered type). The types are int8, int16, int32, int64,
 * uint8, uint16, uint32, uint64, float32 and float64. */
enum { CASTS = 128, TYPES = 10 };

/* Casts `count` numbers. OTHER: an integer does not fit or is too large to be exact as a float, a float is no integer, or
 * a finite one becomes infinite. */
int cast_numbers(const uint8_t *in, int64_t count, int64_t kind, uint8_t *out);

#endif
