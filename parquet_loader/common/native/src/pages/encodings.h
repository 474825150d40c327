/* Encodings of values. */
#ifndef ENCODINGS_H
#define ENCODINGS_H

#include <stdint.h>

enum {
  PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA_BINARY_PACKED = 5, DELTA_LENGTH_BYTE_ARRAY = 6, DELTA_BYTE_ARRAY = 7,
  RLE_DICTIONARY = 8, BYTE_STREAM_SPLIT = 9
};

uint32_t largest(const uint32_t *codes, int64_t count);

void fill(const uint8_t *value, int64_t width, int64_t count, uint8_t *out);

/* Keeps the low bytes of each value; `out` may be `in`. */
void narrow(const uint8_t *in, int64_t width, int64_t count, int64_t kept, uint8_t *out);

void look_up(const uint32_t *codes, int64_t count, const uint8_t *entries, int64_t width, uint8_t *out);

/* Joins `width` streams to values: byte b of value i is `in[b * stride + i]`. */
void join_streams(const uint8_t *in, int64_t stride, int64_t width, int64_t count, uint8_t *out);

#endif
