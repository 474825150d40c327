/* Resizes images with antialiasing; the pixels equal those of Pillow's `resize`.
 *
 * Each delivered row and column is a weighted mean of stored ones, rounded to 8 bits. Weights have 22 binary places.
 * Rows are resized in strips of LANES rows that are transposed, so that one weight applies to a whole vector. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernels.h"

#define PLACES 22
#define HALF (1 << (PLACES - 1))
#define LANES 16  /* values summed at once, of one row or of LANES rows */

typedef uint8_t bytes __attribute__((vector_size(LANES)));
typedef uint8_t eight_bytes __attribute__((vector_size(8)));
typedef int16_t eight_shorts __attribute__((vector_size(16)));
typedef int32_t eight_ints __attribute__((vector_size(32)));

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

/* Filters: functions of a distance, 0 or more. */
static double bilinear(double x) { return x < 1 ? 1 - x : 0; }

static double bicubic(double x) {
  const double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

static void free_weights(struct weights *made) {
  free(made->spans);
  free(made->values);
}

/* Not compiled for several targets: fused multiplication and addition would round differently. */
static int make_weights(int32_t stored, float begin, float end, int32_t delivered, int is_cubic, struct weights *made) {
  const double scale = (double)(end - begin) / delivered, wide = scale < 1 ? 1 : scale;
  const double support = (is_cubic ? 2 : 1) * wide, narrow = 1 / wide;
  made->most = 2 * ((int32_t)support + 1) + 1;
  made->spans = malloc((size_t)delivered * sizeof *made->spans);
  made->values = malloc((size_t)delivered * (size_t)made->most * sizeof *made->values);
  double *exact = malloc((size_t)made->most * sizeof *exact);
  const int is_made = made->spans && made->values && exact;
  for (int32_t i = 0; is_made && i < delivered; i++) {
    const double center = begin + (i + 0.5) * scale;
    double sum = 0;
    int32_t first = (int32_t)(center - support + 0.5), last = (int32_t)(center + support + 0.5);
    if (first < 0) first = 0;
    if (last > stored) last = stored;
    for (int32_t j = 0; j < last - first; j++) {
      const double x = (j + first - center + 0.5) * narrow, distance = x < 0 ? -x : x;
      exact[j] = is_cubic ? bicubic(distance) : bilinear(distance);
      sum += exact[j];
    }
    int32_t *values = made->values + (int64_t)i * made->most;
    for (int32_t j = 0; j < last - first; j++) {
      const double weight = sum != 0 ? exact[j] / sum : exact[j];
      values[j] = (int32_t)((weight < 0 ? -0.5 : 0.5) + weight * (1 << PLACES));
    }
    made->spans[i] = (struct span){first, last - first};
  }
  free(exact);
  return is_made;
}

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
FOR_EACH_TARGET static void columns_first(const struct job *job, int32_t slots) {
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
FOR_EACH_TARGET static void rows_first(const struct job *job) {
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

/* Makes spans relative to the first one; returns its first pixel, and in `used` how many pixels are used. */
static int32_t shift(struct weights *made, int32_t delivered, int32_t *used) {
  const int32_t first = made->spans[0].first;
  for (int32_t i = 0; i < delivered; i++) made->spans[i].first -= first;
  *used = made->spans[delivered - 1].first + made->spans[delivered - 1].count;
  return first;
}

/* Resizes the part of an image within `box` (left, top, right, bottom).
 *
 * `in` has rows of `width` pixels of 1 or 3 `channels`, `stride` bytes apart. The box is inside of the image and not
 * empty. `out` is contiguous. */
EXPORT int image_resize(
    const uint8_t *in, int64_t stride, int32_t height, int32_t width, int32_t channels, const float *box,
    int32_t out_height, int32_t out_width, int is_cubic, int is_mirrored, uint8_t *out) {
  struct job job = {
      .stride = stride, .channels = channels, .out_height = out_height, .out_width = out_width,
      .is_mirrored = is_mirrored, .out = out};
  const int is_made = make_weights(width, box[0], box[2], out_width, is_cubic, &job.columns)
                      & make_weights(height, box[1], box[3], out_height, is_cubic, &job.lines);
  int is_ready = 0;
  if (is_made) {
    int32_t used_columns;
    const int64_t top = shift(&job.lines, out_height, &job.used_rows);
    const int64_t left = shift(&job.columns, out_width, &used_columns);
    job.in = in + top * stride + left * channels;
    job.used_bytes = (int64_t)used_columns * channels;
    /* The same choice as Pillow since release 13: the order affects the last bit. */
    const int64_t less = (int64_t)height - out_height;
    const int is_by_rows = less > 0 && less > 2 * ((int64_t)width - out_width);
    const int64_t out_bytes = (int64_t)out_width * channels;
    const int32_t slots = job.lines.most + LANES;
    const int64_t kept_bytes = is_by_rows ? LANES * job.used_bytes + out_bytes : slots * out_bytes;
    job.turned = malloc((size_t)(job.used_bytes + LANES) * sizeof(bytes));
    job.means = malloc((size_t)(out_bytes + LANES) * sizeof(bytes));
    job.kept = malloc((size_t)kept_bytes);
    job.rows = malloc((size_t)job.lines.most * sizeof *job.rows);
    is_ready = job.turned && job.means && job.kept && job.rows;
    if (is_ready && is_by_rows) rows_first(&job);
    else if (is_ready) columns_first(&job, slots);
    free(job.rows);
    free(job.kept);
    free(job.means);
    free(job.turned);
  }
  free_weights(&job.columns);
  free_weights(&job.lines);
  return is_ready ? OK : NO_MEMORY;
}

INLINE void to_floats(
    const uint8_t *in, int64_t pixels, int channels, int is_planar, const float *scale, const float *offset, float *out) {
  for (int c = 0; c < channels; c++) {
    const float by = scale[c], and_add = offset[c];
    if (is_planar) for (int64_t i = 0; i < pixels; i++) out[c * pixels + i] = in[i * channels + c] * by + and_add;
    else for (int64_t i = 0; i < pixels; i++) out[i * channels + c] = in[i * channels + c] * by + and_add;
  }
}

/* Writes `value * scale[c] + offset[c]` for the values of each channel c of 1, 3 or 4, channel by channel if `is_planar`, else
 * pixel by pixel. Input and output are contiguous. */
EXPORT FOR_EACH_TARGET void image_to_floats(
    const uint8_t *in, int64_t pixels, int channels, int is_planar, const float *scale, const float *offset, float *out) {
  if (channels == 3 && is_planar) to_floats(in, pixels, 3, 1, scale, offset, out);
  else if (channels == 3) to_floats(in, pixels, 3, 0, scale, offset, out);
  else if (channels == 1) to_floats(in, pixels, 1, 1, scale, offset, out);
  else to_floats(in, pixels, channels, is_planar, scale, offset, out);
}
