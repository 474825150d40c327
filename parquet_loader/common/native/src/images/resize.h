/* Resizing and conversion of decoded images; `resize.c` says more. */
#ifndef RESIZE_H
#define RESIZE_H

#include <stdint.h>

int image_resize(
    const uint8_t *in, int64_t stride, int32_t height, int32_t width, int32_t channels, const float *box,
    int32_t out_height, int32_t out_width, int is_cubic, int is_mirrored, uint8_t *out);

void image_to_floats(
    const uint8_t *in, int64_t pixels, int channels, int is_planar, const float *scale, const float *offset, float *out);

/* Writes the values of each channel together. */
void image_to_planes(const uint8_t *in, int64_t pixels, int channels, uint8_t *out);

#endif
