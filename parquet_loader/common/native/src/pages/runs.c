#include "runs.h"

#include <string.h>

int runs_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int bits) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, bits, &run)) return 0;
    values -= (int64_t)run.count;
  }
  return next == stop;
}

INLINE void unpack_bits(const uint8_t *in, uint32_t *out, int64_t count, const int bits) {
  for (int64_t i = 0; i < count; i += 8, in += bits)
    for (int j = 0; j < 8; j++) {
      uint64_t word;
      memcpy(&word, in + (j * bits >> 3), 8);
      out[i + j] = (uint32_t)((word >> (j * bits & 7)) & ((UINT64_C(1) << bits) - 1));
    }
}

FOR_EACH_TARGET void unpack(const uint8_t *in, uint32_t *out, int64_t count, int bits) {
  switch (bits) {
#define BITS(n) case n: unpack_bits(in, out, count, n); break;
    BITS(1) BITS(2) BITS(3) BITS(4) BITS(5) BITS(6) BITS(7) BITS(8) BITS(9) BITS(10) BITS(11) BITS(12) BITS(13)
    BITS(14) BITS(15) BITS(16) BITS(17) BITS(18) BITS(19) BITS(20) BITS(21) BITS(22) BITS(23) BITS(24) BITS(25)
    BITS(26) BITS(27) BITS(28) BITS(29) BITS(30) BITS(31) BITS(32)
    default: memset(out, 0, (size_t)count * sizeof *out);
  }
}
