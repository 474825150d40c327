/* Byte arrays as their positions in a vocabulary. */
#ifndef WORDS_H
#define WORDS_H

#include <stdint.h>

/* A hash table. Python owns its memory, which lives longer than the columns that use it. */
typedef struct {
  const uint8_t *bytes;    /* of all words, and SLACK */
  const int64_t *offsets;  /* of each word in `bytes`, and the end of the last one */
  uint32_t *slots;         /* the number of a word, counted from 1, or 0 */
  int64_t mask;            /* number of slots, less 1; at most half of them are taken */
  int64_t unknown;         /* the code of byte arrays that are not among the words; -1: there is none */
} Vocabulary;

/* Writes the code of each of `count` views to `out`, which may be the views' own memory, with `width` bytes each: at most 8.
 * OTHER: one is not in the vocabulary. */
int words_to_codes(const Vocabulary *vocabulary, const uint8_t *views, int64_t count, int64_t width, uint8_t *out);

#endif
