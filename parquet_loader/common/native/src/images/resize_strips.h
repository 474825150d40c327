/* The loops that resize images. `resize.c` and `resize_avx2.c` compile them, each for other processors. */
#ifndef RESIZE_STRIPS_H
#define RESIZE_STRIPS_H

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "../kernels.h"

#define PLACES 22
#define HALF (1 << (PLACES - 1))
#define LANES 16  /* values summed at once, of one row or of LANES rows */

typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef uint8_t eight_bytes __attribute__((vector_size(8)));
typedef int16_t eight_shorts __attribute__((vector_size(16)));
typedef int32_t eight_ints __attribute__((vector_size(32)));

/* One delivered pixel is the mean of `count` stored pixels from `first` on. Pixel `number` has its weights at
 * `values + number * most`. */
struct span {
  int32_t first, count;
};

struct weights {
  struct span *spans;
  int32_t *values;
  int32_t most;
};

struct job {
  const uint8_t *in;
  int64_t stride;
  int32_t channels, out_height, out_width;
  int is_mirrored;
  struct weights columns, lines;  /* `first` of a span is relative to the first used column or row */
  int64_t used_bytes;  /* bytes of the used columns of a row */
  int32_t used_rows;
  bytes *turned, *means;
  uint8_t *kept, *out;
  const uint8_t **rows;
};

#ifdef HAS_TARGETS
/* As `resize_strips`, for processors with AVX2. */
void resize_with_avx2(const struct job *job, int32_t slots);
#endif

#ifdef __AVX2__
/* Sums of LANES values. */
struct sums {
  __m256i half[2];
};

INLINE void begin(struct sums *sums) {
  for (int h = 0; h < 2; h++) sums->half[h] = _mm256_set1_epi32(HALF);
}

INLINE void add(bytes some, int32_t weight, struct sums *sums) {
  const __m128i halves[2] = {(__m128i)some, _mm_srli_si128((__m128i)some, 8)};
  for (int h = 0; h < 2; h++) {
    const __m256i product = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(halves[h]), _mm256_set1_epi32(weight));
    sums->half[h] = _mm256_add_epi32(sums->half[h], product);
  }
}

INLINE void finish(const struct sums *sums, uint8_t *out) {
  const __m256i first = _mm256_srai_epi32(sums->half[0], PLACES), last = _mm256_srai_epi32(sums->half[1], PLACES);
  /* Packing clips, within each half of a vector. */
  const __m256i shorts = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, last), 0xD8);
  const __m128i done = _mm_packus_epi16(_mm256_castsi256_si128(shorts), _mm256_extracti128_si256(shorts, 1));
  _mm_storeu_si128((__m128i *)out, done);
}
#else
/* In two steps, for which processors have instructions. GCC before release 9 converts values one by one. */
#if defined(__clang__) || __GNUC__ >= 9
#define CONVERT(from, to, type) to = __builtin_convertvector(__builtin_convertvector(from, eight_shorts), type)
#else
#define CONVERT(from, to, type) for (int i_ = 0; i_ < 8; i_++) (to)[i_] = (from)[i_]
#endif

/* Sums of LANES values. */
struct sums {
  eight_ints half[2];
};

INLINE void begin(struct sums *sums) {
  for (int h = 0; h < 2; h++) sums->half[h] = (eight_ints){0} + HALF;
}

INLINE void add(bytes some, int32_t weight, struct sums *sums) {
  eight_bytes halves[2];
  memcpy(halves, &some, sizeof some);
  for (int h = 0; h < 2; h++) {
    eight_ints values;
    CONVERT(halves[h], values, eight_ints);
    sums->half[h] += values * weight;
  }
}

INLINE void finish(const struct sums *sums, uint8_t *out) {
#ifdef __SSE2__
  __m128i four[LANES / 4];
  for (int h = 0; h < 2; h++) {
    const eight_ints mean = sums->half[h] >> PLACES;
    memcpy(four + 2 * h, &mean, sizeof mean);
  }
  /* Both clip; means are below 2^15. */
  const __m128i first = _mm_packs_epi32(four[0], four[1]), last = _mm_packs_epi32(four[2], four[3]);
  _mm_storeu_si128((__m128i *)out, _mm_packus_epi16(first, last));
#else
  for (int h = 0; h < 2; h++) {
    const eight_ints mean = sums->half[h] >> PLACES;  /* below 2^15, so the shifts by 31 give masks of its sign */
    const eight_ints clipped = (mean & ~(mean >> 31)) | ((255 - mean) >> 31 & 255);
    eight_bytes done;
    CONVERT(clipped, done, eight_bytes);
    memcpy(out + 8 * h, &done, 8);
  }
#endif
}
#endif

/* The end of a row may have fewer bytes than a vector. */
INLINE bytes load(const uint8_t *from, int64_t count) {
  bytes some = {0};
  if (count >= LANES) memcpy(&some, from, LANES);
  else memcpy(&some, from, (size_t)count);
  return some;
}

INLINE void store(bytes some, int64_t count, uint8_t *to) {
  if (count >= LANES) memcpy(to, &some, LANES);
  else memcpy(to, &some, (size_t)count);
}

/* Byte c of vector r becomes byte r of vector c. */
INLINE void transpose(bytes *square) {
#ifdef __SSE2__
  bytes made[LANES];
  for (int step = 0; step < 4; step++) {
    const bytes *from = step % 2 ? made : square;
    bytes *to = step % 2 ? square : made;
    for (int i = 0; i < LANES / 2; i++) {
      const __m128i upper = (__m128i)from[i], lower = (__m128i)from[i + LANES / 2];
      to[2 * i] = (bytes)_mm_unpacklo_epi8(upper, lower);
      to[2 * i + 1] = (bytes)_mm_unpackhi_epi8(upper, lower);
    }
  }
#else
  bytes made[LANES];
  for (int r = 0; r < LANES; r++)
    for (int c = 0; c < LANES; c++) made[c][r] = square[r][c];
  memcpy(square, made, sizeof made);
#endif
}

/* Writes the first `nbytes` of delivered row `number`, the mean of `job->rows`. */
INLINE void mean_of_rows(const struct job *job, int32_t number, int64_t nbytes, uint8_t *out) {
  const int32_t *weights = job->lines.values + (int64_t)number * job->lines.most, count = job->lines.spans[number].count;
  const uint8_t **rows = job->rows;
  for (int64_t at = 0; at < nbytes; at += LANES) {
    struct sums sums;
    begin(&sums);
    for (int32_t j = 0; j < count; j++) add(load(rows[j] + at, nbytes - at), weights[j], &sums);
    if (nbytes - at >= LANES) {
      finish(&sums, out + at);
    } else {
      uint8_t done[LANES];
      finish(&sums, done);
      memcpy(out + at, done, (size_t)(nbytes - at));
    }
  }
}

/* Resizes the columns of LANES rows. `columns` is relative to the first column of `rows`; `turned` and `means` have space for
 * the transposed rows before and after. */
INLINE void resize_strip(
    const uint8_t *const *rows, int64_t nbytes, const int32_t channels, const struct weights *columns,
    int32_t delivered, int is_mirrored, bytes *turned, bytes *means, uint8_t *const *outs) {
  for (int64_t at = 0; at < nbytes; at += LANES) {
    for (int r = 0; r < LANES; r++) turned[at + r] = load(rows[r] + at, nbytes - at);
    transpose(turned + at);
  }
  for (int32_t i = 0; i < delivered; i++) {
    const struct span span = columns->spans[i];
    const int32_t *weights = columns->values + (int64_t)i * columns->most;
    const bytes *from = turned + (int64_t)span.first * channels;
    bytes *to = means + (int64_t)(is_mirrored ? delivered - 1 - i : i) * channels;
    struct sums sums[3];
    for (int32_t c = 0; c < channels; c++) begin(sums + c);
    for (int32_t j = 0; j < span.count; j++, from += channels)
      for (int32_t c = 0; c < channels; c++) add(from[c], weights[j], sums + c);
    for (int32_t c = 0; c < channels; c++) finish(sums + c, (uint8_t *)(to + c));
  }
  const int64_t out_bytes = (int64_t)delivered * channels;
  for (int64_t at = 0; at < out_bytes; at += LANES) {
    transpose(means + at);
    for (int r = 0; r < LANES; r++) store(means[at + r], out_bytes - at, outs[r] + at);
  }
}

INLINE void strip(const struct job *job, const uint8_t *const *rows, uint8_t *const *outs) {
  if (job->channels == 3)
    resize_strip(rows, job->used_bytes, 3, &job->columns, job->out_width, job->is_mirrored, job->turned, job->means, outs);
  else
    resize_strip(rows, job->used_bytes, 1, &job->columns, job->out_width, job->is_mirrored, job->turned, job->means, outs);
}

/* Columns, then rows. A row with resized columns is kept in slot `row % slots` until the last row that needs it is done. */
static void columns_first(const struct job *job, int32_t slots) {
  const int64_t out_bytes = (int64_t)job->out_width * job->channels;
  int32_t ready = 0;
  for (int32_t i = 0; i < job->out_height; i++) {
    const struct span span = job->lines.spans[i];
    for (; ready < span.first + span.count; ready += LANES) {
      const uint8_t *rows[LANES];
      uint8_t *outs[LANES];
      for (int32_t r = 0; r < LANES; r++) {
        const int32_t row = ready + r < job->used_rows ? ready + r : job->used_rows - 1;
        rows[r] = job->in + row * job->stride;
        outs[r] = job->kept + (ready + r) % slots * out_bytes;
      }
      strip(job, rows, outs);
    }
    for (int32_t j = 0; j < span.count; j++) job->rows[j] = job->kept + (span.first + j) % slots * out_bytes;
    mean_of_rows(job, i, out_bytes, job->out + i * out_bytes);
  }
}

/* Rows, then columns. */
static void rows_first(const struct job *job) {
  const int64_t out_bytes = (int64_t)job->out_width * job->channels;
  for (int32_t first = 0; first < job->out_height; first += LANES) {
    const uint8_t *rows[LANES];
    uint8_t *outs[LANES];
    for (int32_t r = 0; r < LANES; r++) {
      const int32_t i = first + r;
      uint8_t *made = job->kept + r * job->used_bytes;
      rows[r] = made;
      outs[r] = i < job->out_height ? job->out + i * out_bytes : job->kept + LANES * job->used_bytes;
      if (i >= job->out_height) continue;
      const struct span span = job->lines.spans[i];
      for (int32_t j = 0; j < span.count; j++) job->rows[j] = job->in + (span.first + j) * job->stride;
      mean_of_rows(job, i, job->used_bytes, made);
    }
    strip(job, rows, outs);
  }
}

/* Resizes an image. `slots`: rows with resized columns that are kept, if columns are resized first; 0: rows are first. */
static inline void resize_strips(const struct job *job, int32_t slots) {
  if (slots) columns_first(job, slots);
  else rows_first(job);
}

#endif
