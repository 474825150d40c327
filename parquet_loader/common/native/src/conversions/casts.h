/* Numbers of one type as numbers of another, if no value changes by more than rounding to fewer digits. */
#ifndef CASTS_H
#define CASTS_H

#include <stdint.h>

#include "conversions.h"

/* Casts `count` numbers; `kind` is CASTS and their types. OTHER: an integer does not fit or is too large to be exact as a float, a float is no integer, or
 * a finite one becomes infinite. */
int cast_numbers(const uint8_t *in, int64_t count, int64_t kind, uint8_t *out);

#endif
