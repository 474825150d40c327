/* Byte arrays: values that differ in length. */
#ifndef BYTE_ARRAYS_H
#define BYTE_ARRAYS_H

#include <stdint.h>

#include "delta.h"

/* A value of at most INT32_MAX bytes; at least SLACK bytes behind them are readable. For an entry of a dictionary, the upper
 * half of `nbytes` is the number of the entry, counted from 1. */
typedef struct {
  const uint8_t *bytes;
  int64_t nbytes;
} View;

/* Whether all bytes are ASCII; 8 bytes beyond them must be readable. */
int is_all_ascii(const uint8_t *bytes, int64_t nbytes);

/* Finds the next `values` plain values, from `*at` up to `stop`, and advances `*at`. `is_text`: each has to be UTF-8. `views`
 * may be NULL: then the values are skipped without this check. */
int plain_views(const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views);

/* Adds the numbers of entries to the views of a dictionary. */
void number_views(int64_t count, View *views);

/* As `plain_views`, for DELTA_LENGTH_BYTE_ARRAY, whose lengths come first: they are read from `lengths`. */
int delta_length_views(
    Delta *lengths, const uint8_t **at, const uint8_t *stop, int64_t values, int is_text, View *views);

/* Reads a page of DELTA_BYTE_ARRAY from `next` to `stop`: each value is a prefix of the one before it, and a suffix. `views`
 * get the suffixes, with the length of the prefix in the upper half of `nbytes`. Returns the bytes of all values, or -1 if
 * the page does not add up or they exceed `most_bytes`. */
int64_t delta_views(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t most_bytes, View *views);

/* Joins prefixes and suffixes that `delta_views` found: writes the values to `out` and their views to `views`. */
int join_delta_views(int64_t values, int is_text, uint8_t *out, View *views);

#endif
