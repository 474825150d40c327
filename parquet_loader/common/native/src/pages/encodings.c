#include "encodings.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "../kernels.h"

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

/* Not compiled for several targets: on some processors a vector gather takes twice as long. */
void look_up(const uint32_t *codes, int64_t count, const uint8_t *entries, int64_t width, uint8_t *out) {
#define LOOK_UP(w) \
  _Pragma("GCC unroll 8") \
  for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, entries + (w) * (int64_t)codes[i], (size_t)(w))
  FOR_WIDTH(width, LOOK_UP)
}

#ifdef __SSE2__
/* 16 values of 4 or 8 bytes at a time: pairs of streams are interleaved until a value is whole. */
INLINE void join_sixteen(const uint8_t *in, int64_t stride, const int width, uint8_t *out) {
  __m128i streams[8], joined[8];
  for (int b = 0; b < width; b++) streams[b] = _mm_loadu_si128((const __m128i *)(in + b * stride));
  for (int step = 1; step < width; step *= 2) {
    /* Each step interleaves stream b with stream b + width / 2. */
    for (int b = 0; b < width / 2; b++) {
      joined[2 * b] = _mm_unpacklo_epi8(streams[b], streams[b + width / 2]);
      joined[2 * b + 1] = _mm_unpackhi_epi8(streams[b], streams[b + width / 2]);
    }
    for (int b = 0; b < width; b++) streams[b] = joined[b];
  }
  for (int b = 0; b < width; b++) _mm_storeu_si128((__m128i *)(out + 16 * b), streams[b]);
}
#endif

void join_streams(const uint8_t *in, int64_t stride, int64_t width, int64_t count, uint8_t *out) {
  int64_t i = 0;
#ifdef __SSE2__
  if (width == 4) for (; i + 16 <= count; i += 16) join_sixteen(in + i, stride, 4, out + 4 * i);
  if (width == 8) for (; i + 16 <= count; i += 16) join_sixteen(in + i, stride, 8, out + 8 * i);
#endif
  for (; i < count; i++)
    for (int64_t b = 0; b < width; b++) out[i * width + b] = in[b * stride + i];
}
