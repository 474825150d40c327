#include "runs.h"

#include <string.h>
#ifdef HAS_TARGETS
#include <immintrin.h>
#endif

int runs_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int bits) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, bits, &run)) return 0;
    values -= (int64_t)run.count;
  }
  return next == stop;
}

#define FOR_EACH_WIDTH(does) \
  does(1) does(2) does(3) does(4) does(5) does(6) does(7) does(8) does(9) does(10) does(11) does(12) does(13) does(14) \
  does(15) does(16) does(17) does(18) does(19) does(20) does(21) does(22) does(23) does(24) does(25) does(26) does(27) \
  does(28) does(29) does(30) does(31) does(32)

INLINE void unpack_bits(const uint8_t *in, uint32_t *out, int64_t count, const int bits) {
  for (int64_t i = 0; i < count; i += 8, in += bits)
    for (int j = 0; j < 8; j++) {
      uint64_t word;
      memcpy(&word, in + (j * bits >> 3), 8);
      out[i + j] = (uint32_t)((word >> (j * bits & 7)) & ((UINT64_C(1) << bits) - 1));
    }
}

#ifdef HAS_TARGETS

/* Loads the 8 bytes at which each of the codes `first`, `first` + 1, `first` + 4 and `first` + 5 begins, and shifts each code to
 * the lowest bit. */
INLINE IN_AVX2 __m256i four_codes(const uint8_t *in, const int first, const int bits) {
#define BYTE(code) ((code) * bits >> 3)
  const int low = BYTE(first), high = BYTE(first + 4), next = BYTE(first + 1) - low, other = BYTE(first + 5) - high;
  const __m256i bytes = _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(in + low))),
      _mm_loadu_si128((const __m128i *)(in + high)), 1);
  const int64_t each = INT64_C(0x0706050403020100), one = INT64_C(0x0101010101010101);
  const __m256i from = _mm256_setr_epi64x(each, each + next * one, each, each + other * one);
  const __m256i by = _mm256_setr_epi64x(
      first * bits & 7, (first + 1) * bits & 7, (first + 4) * bits & 7, (first + 5) * bits & 7);
  return _mm256_srlv_epi64(_mm256_shuffle_epi8(bytes, from), by);
#undef BYTE
}

INLINE IN_AVX2 void unpack_bits_avx2(const uint8_t *in, uint32_t *out, int64_t count, const int bits) {
  const __m256i mask = _mm256_set1_epi32((int)((UINT64_C(1) << bits) - 1));
  for (int64_t i = 0; i < count; i += 8, in += bits) {
    const __m256 some = _mm256_castsi256_ps(four_codes(in, 0, bits)), others = _mm256_castsi256_ps(four_codes(in, 2, bits));
    const __m256i codes = _mm256_castps_si256(_mm256_shuffle_ps(some, others, 0x88));  /* the low half of each */
    _mm256_storeu_si256((__m256i *)(out + i), _mm256_and_si256(codes, mask));
  }
}

IN_AVX2 static void unpack_avx2(const uint8_t *in, uint32_t *out, int64_t count, int bits) {
  switch (bits) {
#define UNPACK_AVX2(n) case n: unpack_bits_avx2(in, out, count, n); break;
    FOR_EACH_WIDTH(UNPACK_AVX2)
    default: memset(out, 0, (size_t)count * sizeof *out);
  }
}
#endif

void unpack(const uint8_t *in, uint32_t *out, int64_t count, int bits) {
#ifdef HAS_TARGETS
  if (__builtin_cpu_supports("avx2")) {
    unpack_avx2(in, out, count, bits);
    return;
  }
#endif
  switch (bits) {
#define UNPACK(n) case n: unpack_bits(in, out, count, n); break;
    FOR_EACH_WIDTH(UNPACK)
    default: memset(out, 0, (size_t)count * sizeof *out);
  }
}
