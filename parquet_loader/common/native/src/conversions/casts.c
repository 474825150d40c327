#include "casts.h"

#include <math.h>
#include <string.h>

#include "../kernels.h"

#define IS_SIGNED(type) ((type)-1 < 0)
/* Up to this, floats represent all integers; Arrow refuses larger ones. */
#define MOST_EXACT(to) (INT64_C(1) << (sizeof(to) == sizeof(float) ? 24 : 53))

/* Each sets `cast` to the cast of `value`, and `fits` to whether that is accepted. */
#define INTEGER_TO_INTEGER(from, to) cast = (to)value, fits = ((from)cast == value) & ((cast < 0) == (value < 0))
#define INTEGER_TO_FLOAT(from, to) \
  cast = (to)value; \
  fits = IS_SIGNED(from) ? ((int64_t)value <= MOST_EXACT(to)) & ((int64_t)value >= -MOST_EXACT(to)) \
                         : (uint64_t)value <= (uint64_t)MOST_EXACT(to)
/* One more than the largest integer of a type, as a float. */
#define AFTER(type) ((double)(INT64_C(1) << (8 * sizeof(type) - 2)) * (IS_SIGNED(type) ? 2 : 4))
#define FLOAT_TO_INTEGER(from, to) \
  fits = (value >= (IS_SIGNED(to) ? -AFTER(to) : 0)) & (value < AFTER(to)); \
  cast = fits ? (to)value : 0, fits &= (from)cast == value
#define FLOAT_TO_FLOAT(from, to) \
  cast = (to)value, fits = (fabs((double)cast) != HUGE_VAL) | (fabs((double)value) == HUGE_VAL)

#define FOR_EACH_NUMBER(does, from, to) { \
  int are_lost = 0; \
  for (int64_t i = 0; i < count; i++) { \
    from value; \
    to cast; \
    int fits; \
    memcpy(&value, in + sizeof value * (size_t)i, sizeof value); \
    does(from, to); \
    are_lost |= !fits; \
    memcpy(out + sizeof cast * (size_t)i, &cast, sizeof cast); \
  } \
  return are_lost ? OTHER : OK; \
}

#define TO_EACH(number, from, to_integer, to_float) \
  case NUMBER_TYPES * number + 0: FOR_EACH_NUMBER(to_integer, from, int8_t) \
  case NUMBER_TYPES * number + 1: FOR_EACH_NUMBER(to_integer, from, int16_t) \
  case NUMBER_TYPES * number + 2: FOR_EACH_NUMBER(to_integer, from, int32_t) \
  case NUMBER_TYPES * number + 3: FOR_EACH_NUMBER(to_integer, from, int64_t) \
  case NUMBER_TYPES * number + 4: FOR_EACH_NUMBER(to_integer, from, uint8_t) \
  case NUMBER_TYPES * number + 5: FOR_EACH_NUMBER(to_integer, from, uint16_t) \
  case NUMBER_TYPES * number + 6: FOR_EACH_NUMBER(to_integer, from, uint32_t) \
  case NUMBER_TYPES * number + 7: FOR_EACH_NUMBER(to_integer, from, uint64_t) \
  case NUMBER_TYPES * number + 8: FOR_EACH_NUMBER(to_float, from, float) \
  case NUMBER_TYPES * number + 9: FOR_EACH_NUMBER(to_float, from, double)

int cast_numbers(const uint8_t *in, int64_t count, int64_t kind, uint8_t *out) {
  switch (kind - CASTS) {
    TO_EACH(0, int8_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(1, int16_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(2, int32_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(3, int64_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(4, uint8_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(5, uint16_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(6, uint32_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(7, uint64_t, INTEGER_TO_INTEGER, INTEGER_TO_FLOAT)
    TO_EACH(8, float, FLOAT_TO_INTEGER, FLOAT_TO_FLOAT)
    TO_EACH(9, double, FLOAT_TO_INTEGER, FLOAT_TO_FLOAT)
    default: return OTHER;
  }
}
