#include "encodings.h"

#include <string.h>

#include "kernels.h"

FOR_EACH_TARGET uint32_t largest(const uint32_t *codes, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; i++) most = codes[i] > most ? codes[i] : most;
  return most;
}

void fill(const uint8_t *value, int64_t width, int64_t count, uint8_t *out) {
#define FILL(w) for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, value, (size_t)(w))
  FOR_WIDTH(width, FILL)
}

void narrow(const uint8_t *in, int64_t width, int64_t count, int64_t kept, uint8_t *out) {
  if (width == 4 && kept == 1) for (int64_t i = 0; i < count; i++) out[i] = in[4 * i];
  else for (int64_t i = 0; i < count; i++) memmove(out + kept * i, in + width * i, (size_t)kept);
}

FOR_EACH_TARGET void look_up(
    const uint32_t *codes, int64_t count, const uint8_t *entries, int64_t width, uint8_t *out) {
#define LOOK_UP(w) for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, entries + (w) * (int64_t)codes[i], (size_t)(w))
  FOR_WIDTH(width, LOOK_UP)
}
