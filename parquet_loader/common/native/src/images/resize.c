/* Resizes images with antialiasing; the pixels equal those of Pillow's `resize`.
 *
 * Each delivered row and column is a weighted mean of stored ones, rounded to 8 bits. Weights have 22 binary places.
 * Rows are resized in strips of LANES rows that are transposed, so that one weight applies to a whole vector. */
#include <stdlib.h>

#include "resize.h"
#include "resize_strips.h"

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

/* Makes spans relative to the first one; returns its first pixel, and in `used` how many pixels are used. */
static int32_t shift(struct weights *made, int32_t delivered, int32_t *used) {
  const int32_t first = made->spans[0].first;
  for (int32_t i = 0; i < delivered; i++) made->spans[i].first -= first;
  *used = made->spans[delivered - 1].first + made->spans[delivered - 1].count;
  return first;
}

static void resize(const struct job *job, int32_t slots) {
#ifdef HAS_TARGETS
  if (__builtin_cpu_supports("avx2")) {
    resize_with_avx2(job, slots);
    return;
  }
#endif
  resize_strips(job, slots);
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
    if (is_ready) resize(&job, is_by_rows ? 0 : slots);
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

void image_to_planes(const uint8_t *in, int64_t pixels, int channels, uint8_t *out) {
  for (int c = 0; c < channels; c++)
    for (int64_t i = 0; i < pixels; i++) out[c * pixels + i] = in[i * channels + c];
}
