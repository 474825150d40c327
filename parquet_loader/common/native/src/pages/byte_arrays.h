/* Byte arrays: values that differ in length. */
#ifndef BYTE_ARRAYS_H
#define BYTE_ARRAYS_H

#include <stdint.h>

#include "delta.h"

/* A value: where its bytes are, at most INT32_MAX. At least SLACK bytes behind them can be read. Of an entry of a dictionary
 * the upper half of `nbytes` is its number, from 1 on. */
typedef struct {
  const uint8_t *bytes;
  int64_t nbytes;
} View;

/* Whether there is no byte over 127; 8 bytes behind them are read in vain. */
int is_all_ascii(const uint8_t *bytes, int64_t nbytes);

/* Finds the next `values` plain values, from `*at`, which becomes the place behind them, to `stop` at most. `is_text`: each
 * has to be UTF-8. `views` may be NULL: the values are passed over, unchecked. */
int plain_views(const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views);

/* Adds their numbers to views of a dictionary's entries. */
void number_views(int64_t count, View *views);

/* As `plain_views`, of DELTA_LENGTH_BYTE_ARRAY: all lengths come first, and are read from `lengths`. */
int delta_length_views(
    Delta *lengths, const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views);

/* Finds the values of DELTA_BYTE_ARRAY that fill the bytes from `next` to `stop`: each begins as the one before it. `views`
 * get the ends of the values; returns the bytes of all values together, or -1: they do not add up, or take more than
 * `most_bytes`. */
int64_t delta_views(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t most_bytes, View *views);

/* Puts the values that `delta_views` found, and that still refer to the page, together at `out`. */
int join_delta_views(int64_t values, int is_text, uint8_t *out, View *views);

#endif
