/* Random words of Philox4x64-10, as numpy generates them. */
#ifndef PHILOX_H
#define PHILOX_H

#include <stdint.h>

enum { PHILOX_WORDS = 64 };  /* generated at a time */

/* Writes `count` words to `out`, from word `first` on, a multiple of 4. `out` has space for a multiple of PHILOX_WORDS.
 * `use`: the key, and the upper half of the counter. */
void philox_words(const uint64_t *use, uint64_t first, int64_t count, uint64_t *out);

#endif
