#include "spread.h"

#include <string.h>

#include "../kernels.h"
#ifdef HAS_TARGETS
#include <immintrin.h>
#endif

typedef struct {
  uint64_t low, high;
} Pair;

/* Rows and values that are done. */
typedef struct {
  int64_t rows, values;
} Done;

#ifdef HAS_TARGETS
#define EACH_BYTE UINT64_C(0x0101010101010101)

/* Values of 4 or 8 bytes, 8 or 4 rows at a time; fewer rows may be left. The bytes of a product with EACH_BYTE are the number
 * of values up to each row, so that a shift by a byte gives the index of each row's value. */
INLINE IN_AVX2 Done spread_vectors(
    const uint8_t *values, const uint8_t *defined, int64_t rows, const uint8_t *filler, const int width, uint8_t *out) {
  const int lanes = 32 / width;
  int64_t other;
  memcpy(&other, filler, sizeof other);
  const __m256i others = width == 4 ? _mm256_set1_epi32((int32_t)other) : _mm256_set1_epi64x(other);
  Done done = {0, 0};
  for (; done.rows + lanes <= rows; done.rows += lanes) {
    uint64_t flags = 0;
    memcpy(&flags, defined + done.rows, (size_t)lanes);
    const uint64_t counts = flags * EACH_BYTE;
    const __m128i are_values = _mm_cvtsi64_si128((int64_t)flags), before = _mm_cvtsi64_si128((int64_t)(counts << 8));
    __m256i from, are_null;
    if (width == 4) {
      from = _mm256_cvtepu8_epi32(before);
      are_null = _mm256_cmpeq_epi32(_mm256_cvtepu8_epi32(are_values), _mm256_setzero_si256());
    } else {  /* two halves each */
      const __m256i low = _mm256_slli_epi64(_mm256_cvtepu8_epi64(before), 1);
      from = _mm256_or_si256(low, _mm256_slli_epi64(_mm256_add_epi64(low, _mm256_set1_epi64x(1)), 32));
      are_null = _mm256_cmpeq_epi64(_mm256_cvtepu8_epi64(are_values), _mm256_setzero_si256());
    }
    const __m256i some = _mm256_loadu_si256((const __m256i *)(values + done.values * width));
    const __m256i spread = _mm256_permutevar8x32_epi32(some, from);
    _mm256_storeu_si256((__m256i *)(out + done.rows * width), _mm256_blendv_epi8(spread, others, are_null));
    done.values += (int64_t)(counts >> 8 * (lanes - 1) & 0xFF);
  }
  return done;
}

IN_AVX2 static Done spread_avx2(
    const uint8_t *values, const uint8_t *defined, int64_t rows, const uint8_t *filler, int64_t width, uint8_t *out) {
  if (width == 4) return spread_vectors(values, defined, rows, filler, 4, out);
  return spread_vectors(values, defined, rows, filler, 8, out);
}
#endif

#define SPREAD(type) { \
    type value, other; \
    memcpy(&other, filler, sizeof other); \
    for (int64_t i = done.rows, k = done.values; i < rows; k += defined[i++]) { \
      memcpy(&value, values + sizeof value * k, sizeof value); \
      value = defined[i] ? value : other; \
      memcpy(out + sizeof value * i, &value, sizeof value); \
    } \
    break; \
  }

void spread(
    const uint8_t *values, int64_t value_count, const uint8_t *defined, int64_t rows, const uint8_t *filler,
    int64_t width, uint8_t *out) {
  Done done = {0, 0};
#ifdef HAS_TARGETS
  if (values != out && (width == 4 || width == 8) && __builtin_cpu_supports("avx2"))
    done = spread_avx2(values, defined, rows, filler, width, out);
#endif
  switch (values == out ? 0 : width) {
    case 1: SPREAD(uint8_t)
    case 2: SPREAD(uint16_t)
    case 4: SPREAD(uint32_t)
    case 8: SPREAD(uint64_t)
    case 16: SPREAD(Pair)
    default:  /* from the end, so that no value is overwritten before it is moved */
      for (int64_t i = rows - 1, k = value_count; i >= 0; i--) {
        if (defined[i]) memmove(out + width * i, values + width * --k, (size_t)width);
        else if (width <= 16) memcpy(out + width * i, filler, (size_t)width);
        else memset(out + width * i, 0, (size_t)width);
      }
  }
}
