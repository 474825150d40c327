/* Encodings of values. */
#ifndef ENCODINGS_H
#define ENCODINGS_H

#include <stdint.h>

enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };

uint32_t largest(const uint32_t *codes, int64_t count);

void fill(const uint8_t *value, int64_t width, int64_t count, uint8_t *out);

/* Keeps the low bytes of each value; `out` may be `in`. */
void narrow(const uint8_t *in, int64_t width, int64_t count, int64_t kept, uint8_t *out);

void look_up(const uint32_t *codes, int64_t count, const uint8_t *entries, int64_t width, uint8_t *out);

#endif
