/* Decodes and resizes the JPEG images of a batch: without Python between them, so that the GIL is released once. Several
 * images share a decoder, because some releases of libjpeg-turbo ask the processor for its features for each new one. In virtual
 * machines this takes about 10 us. */
#include <stdatomic.h>

#include "jpeg.h"
#include "resize.h"

/* An image of a batch. Python has the same structure: `_TASK` in `decode/jpeg.py`. */
struct task {
  int64_t begin, end;  /* of its bytes */
  uint64_t out;        /* the address of the delivered image */
  int32_t height, width, out_height, out_width;  /* of the decoded and of the delivered image */
  int32_t factor, is_mirrored;
  int32_t part[4], cut[4];  /* pixels to decode, as in decode_with, and those to resize: top, bottom, left, right */
  float box[4];             /* left, top, right, bottom, in pixels of the cut */
};

/* How the images of a column are delivered. Python has the same structure: `_FORM`. */
struct form {
  int32_t channels, is_cubic, is_planar, is_float;
  float scale[4], offset[4];
};

static int write_pixels(
    Decoder *decoder, const uint8_t *data, const struct task *task, const struct form *form, uint8_t *decoded, uint8_t *out) {
  const int32_t channels = form->channels, shape[3] = {task->height, task->width, channels};
  const int is_whole = task->height == task->out_height && task->width == task->out_width && !task->is_mirrored
                       && task->box[0] == 0 && task->box[2] == task->width && task->box[1] == 0 && task->box[3] == task->height;
  uint8_t *const to = is_whole ? out : decoded;
  const int problem = decode_with(
      decoder, data + task->begin, task->end - task->begin, task->factor, task->part, shape, to);
  if (problem || is_whole) return !problem;
  const int32_t *cut = task->cut;
  const int64_t stride = (int64_t)task->width * channels;
  return !image_resize(
      decoded + cut[0] * stride + cut[2] * channels, stride, cut[1] - cut[0], cut[3] - cut[2], channels, task->box,
      task->out_height, task->out_width, form->is_cubic, task->is_mirrored, out);
}

/* Decodes images and writes them to their memory, until `next`, the number of the next image, is `count`. So several threads
 * decode a batch together; `decoded` and `resized` belong to one of them, and have space for the largest decoded and delivered
 * image. Sets `is_done` of each decoded image; the memory of others is undefined. */
EXPORT void jpeg_batch(
    const uint8_t *data, const struct task *tasks, int64_t count, const struct form *form, _Atomic int64_t *next,
    uint8_t *decoded, uint8_t *resized, uint8_t *is_done) {
  const int is_direct = !form->is_float && !form->is_planar;
  Decoder decoder;
  decoder.is_open = 0;
  for (int64_t i; (i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed)) < count;) {
    const struct task *task = tasks + i;
    uint8_t *const out = ADDRESS(uint8_t, task->out);
    is_done[i] = (uint8_t)write_pixels(&decoder, data, task, form, decoded, is_direct ? out : resized);
    if (!is_done[i] || is_direct) continue;
    const int64_t pixels = (int64_t)task->out_height * task->out_width;
    if (form->is_float)
      image_to_floats(resized, pixels, form->channels, form->is_planar, form->scale, form->offset, (float *)out);
    else
      image_to_planes(resized, pixels, form->channels, out);
  }
  close_decoder(&decoder);
}
