/* Decodes and resizes the JPEG images of a batch: without Python between them, so that the GIL is released once, and with one
 * decoder, because some releases of libjpeg-turbo ask the processor for its features for each new one. In virtual machines this
 * takes about 10 us. */
#include "jpeg.h"
#include "resize.h"

/* An image of a batch. Python has the same structure: `TASK` in `decode/jpeg.py`. */
struct task {
  int64_t begin, end, row;  /* of its bytes; of the batch */
  int32_t height, width, factor, is_mirrored;  /* as in jpeg_decode: the size of the decoded image */
  int32_t part[4], cut[4];  /* pixels to decode, and those to resize: top, bottom, left, right */
  float box[4];             /* left, top, right, bottom, in pixels of the cut */
};

/* How the images of a column are delivered. Python has the same structure: `FORM`. */
struct form {
  int32_t channels, height, width, is_cubic, is_planar, is_float;
  float scale[4], offset[4];
};

static int write_pixels(
    Decoder *decoder, const uint8_t *data, const struct task *task, const struct form *form, uint8_t *decoded, uint8_t *out) {
  const int32_t channels = form->channels, shape[3] = {task->height, task->width, channels};
  const int is_whole = task->height == form->height && task->width == form->width && !task->is_mirrored
                       && task->box[0] == 0 && task->box[2] == task->width && task->box[1] == 0 && task->box[3] == task->height;
  uint8_t *const to = is_whole ? out : decoded;
  const int problem = decode_with(
      decoder, data + task->begin, task->end - task->begin, task->factor, task->part, shape, to);
  if (problem || is_whole) return !problem;
  const int32_t *cut = task->cut;
  const int64_t stride = (int64_t)task->width * channels;
  return !image_resize(
      decoded + cut[0] * stride + cut[2] * channels, stride, cut[1] - cut[0], cut[3] - cut[2], channels, task->box,
      form->height, form->width, form->is_cubic, task->is_mirrored, out);
}

/* Decodes images and writes them to their rows of `out`. `decoded` has space for the largest decoded image, `resized` for one
 * in the delivered size. Sets `is_done` of each task; the rows of the others are undefined. */
EXPORT void jpeg_batch(
    const uint8_t *data, const struct task *tasks, int64_t count, const struct form *form, uint8_t *decoded,
    uint8_t *resized, uint8_t *out, uint8_t *is_done) {
  const int64_t pixels = (int64_t)form->height * form->width, values = pixels * form->channels;
  const int is_direct = !form->is_float && !form->is_planar;
  Decoder decoder;
  decoder.is_open = 0;
  for (int64_t i = 0; i < count; i++) {
    uint8_t *const row = out + tasks[i].row * values * (form->is_float ? (int64_t)sizeof(float) : 1);
    is_done[i] = (uint8_t)write_pixels(&decoder, data, tasks + i, form, decoded, is_direct ? row : resized);
    if (!is_done[i] || is_direct) continue;
    if (form->is_float)
      image_to_floats(resized, pixels, form->channels, form->is_planar, form->scale, form->offset, (float *)row);
    else
      image_to_planes(resized, pixels, form->channels, row);
  }
  close_decoder(&decoder);
}
