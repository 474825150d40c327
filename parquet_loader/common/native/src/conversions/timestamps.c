#include "timestamps.h"

#include <string.h>

#include "../kernels.h"

enum { INT96_BYTES = 12, JULIAN_DAY_OF_1970 = 2440588, MOST_DAYS = 106750 };
#define DAY_NANOSECONDS UINT64_C(86400000000000)

FOR_EACH_TARGET int convert_int96(const uint8_t *in, int64_t count, uint8_t *out) {
  int is_outside = 0;
  for (int64_t i = 0; i < count; i++) {
    uint64_t time;
    uint32_t julian;
    memcpy(&time, in + INT96_BYTES * i, sizeof time);
    memcpy(&julian, in + INT96_BYTES * i + sizeof time, sizeof julian);
    const int64_t day = (int64_t)julian - JULIAN_DAY_OF_1970;
    /* pyarrow before 23 writes a time before 1970 as a negative one of the next day. */
    const int is_of_a_day = time + DAY_NANOSECONDS - 1 < 2 * DAY_NANOSECONDS - 1;
    is_outside |= !is_of_a_day | (day < -MOST_DAYS) | (day > MOST_DAYS);
    /* Unsigned, because the sum may overflow before it is refused. */
    const uint64_t nanoseconds = (uint64_t)day * DAY_NANOSECONDS + time;
    memcpy(out + sizeof nanoseconds * (size_t)i, &nanoseconds, sizeof nanoseconds);
  }
  return is_outside ? OTHER : OK;
}
