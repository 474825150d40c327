#include "words.h"

#include <string.h>

#include "../kernels.h"
#include "../pages/byte_arrays.h"

INLINE uint64_t mixed(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  return hash ^ hash >> 32;
}

/* Reads up to 7 bytes beyond the end, and ignores them. */
static uint64_t hash_of(const uint8_t *bytes, int64_t nbytes) {
  uint64_t hash = (uint64_t)nbytes, word;
  for (; nbytes > 0; nbytes -= 8, bytes += 8) {
    memcpy(&word, bytes, sizeof word);
    if (nbytes < 8) word &= (UINT64_C(1) << 8 * nbytes) - 1;
    hash = mixed(hash, word);
  }
  return hash;
}

/* Returns the slot of a word, or the empty one where it would be. */
static uint32_t *slot_of(const Vocabulary *words, const uint8_t *bytes, int64_t nbytes) {
  for (uint64_t at = hash_of(bytes, nbytes);; at++) {
    uint32_t *slot = words->slots + (at & (uint64_t)words->mask);
    if (!*slot) return slot;
    const int64_t begin = words->offsets[*slot - 1], size = words->offsets[*slot] - begin;
    if (size == nbytes && memcmp(words->bytes + begin, bytes, (size_t)nbytes) == 0) return slot;
  }
}

/* Fills the slots, which are 0, with `count` words, which differ. */
EXPORT void vocabulary_fill(const Vocabulary *words, int64_t count) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t begin = words->offsets[i];
    *slot_of(words, words->bytes + begin, words->offsets[i + 1] - begin) = (uint32_t)(i + 1);
  }
}

int words_to_codes(const Vocabulary *vocabulary, const uint8_t *views, int64_t count, int64_t width, uint8_t *out) {
  for (int64_t i = 0; i < count; i++) {
    View view;
    memcpy(&view, views + (int64_t)sizeof view * i, sizeof view);
    const int64_t number = *slot_of(vocabulary, view.bytes, view.nbytes), code = number ? number - 1 : vocabulary->unknown;
    if (code < 0) return OTHER;
    memcpy(out + width * i, &code, (size_t)width);
  }
  return OK;
}
