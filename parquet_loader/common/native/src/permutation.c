/* Seeded permutations: random words of Philox, sorted together with the numbers of their elements.
 *
 * The result equals that of numpy's sort in `common/permutations.py`, bit for bit. Words are distributed to buckets by their
 * first bits, then to slots of a word or two by the next bits, so that few comparisons remain. Without a buffer to keep
 * them, words are generated twice, to count and to distribute them: that costs less than page faults on a new buffer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

enum {
  ROUNDS = 10,          /* of Philox */
  BLOCKS = 4,           /* of 4 words, generated side by side: measured, 2.6 ns a word instead of 4.0 */
  AT_ONCE = 1024,       /* words generated at a time; a multiple of 4 * BLOCKS */
  BUCKET_WORDS = 2048,  /* in a bucket on average, if BUCKET_BITS suffice; these three are the fastest measured */
  BUCKET_BITS = 10,
  SLOT_BITS = 12,
  FEW_WORDS = 24,       /* at most this many are sorted by insertion */
};

typedef struct {
  const uint64_t *given;  /* the words, or NULL to generate them */
  const uint64_t *use;    /* the key of Philox, and the upper half of its counter */
} Words;

/* Returns the low half of a product. */
INLINE uint64_t multiply(uint64_t a, uint64_t b, uint64_t *high) {
#ifdef __SIZEOF_INT128__
  unsigned __int128 product = (unsigned __int128)a * b;
  *high = (uint64_t)(product >> 64);
#else
  uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
  uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
  *high = a1 * b1 + (middle >> 32) + (other >> 32);
#endif
  return a * b;
}

/* Philox4x64-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). As in numpy, the first block has
 * counter 1. Several blocks are generated at a time, because each round of a block depends on the one before. `first`: a
 * multiple of 4; `out` has space for a multiple of 4 * BLOCKS words. */
static void generate(const Words *words, uint64_t first, int64_t count, uint64_t *out) {
  if (words->given) {
    memcpy(out, words->given + first, (size_t)count * sizeof *out);
    return;
  }
  uint64_t k0[ROUNDS], k1[ROUNDS];
  for (int r = 0; r < ROUNDS; r++) {
    k0[r] = words->use[0] + (uint64_t)r * UINT64_C(0x9E3779B97F4A7C15);
    k1[r] = words->use[1] + (uint64_t)r * UINT64_C(0xBB67AE8584CAA73B);
  }
  for (int64_t i = 0; i < count; i += 4 * BLOCKS) {
    uint64_t c[BLOCKS][4];
    for (int b = 0; b < BLOCKS; b++) {
      c[b][0] = (first + (uint64_t)i) / 4 + 1 + (uint64_t)b, c[b][1] = 0;
      c[b][2] = words->use[2], c[b][3] = words->use[3];
    }
    for (int r = 0; r < ROUNDS; r++) {
      for (int b = 0; b < BLOCKS; b++) {
        uint64_t high0, high1, low0 = multiply(UINT64_C(0xD2E7470EE14C6C93), c[b][0], &high0);
        uint64_t low1 = multiply(UINT64_C(0xCA5A826395121157), c[b][2], &high1);
        c[b][0] = high1 ^ c[b][1] ^ k0[r], c[b][1] = low1;
        c[b][2] = high0 ^ c[b][3] ^ k1[r], c[b][3] = low0;
      }
    }
    memcpy(out + i, c, sizeof c);
  }
}

/* Writes `count` words of Philox to `out`; `use` as in `permute`. */
EXPORT void random_words(const uint64_t *use, int64_t count, uint64_t *out) {
  Words words = {NULL, use};
  int64_t whole = count - count % AT_ONCE;
  uint64_t last[AT_ONCE];
  generate(&words, 0, whole, out);
  generate(&words, (uint64_t)whole, count - whole, last);
  memcpy(out + whole, last, (size_t)(count - whole) * sizeof *last);
}

/* Replaces the count of each bucket by the number of words before it. Returns the largest count. */
static uint32_t starts_of(uint32_t *counts, int64_t buckets) {
  uint32_t before = 0, most = 0;
  for (int64_t b = 0; b < buckets; b++) {
    uint32_t count = counts[b];
    most = count > most ? count : most;
    counts[b] = before;
    before += count;
  }
  return most;
}

/* Insertion sort from `in` to `out`, which may be the same; fast if every word is near its final index already. Most words
 * that are out of order belong just before the last one: they are swapped without a branch, which would be mispredicted. */
static void insert_all(const uint64_t *in, uint64_t *out, int64_t count) {
  if (count == 0) return;
  uint64_t last = in[0];  /* the largest so far */
  for (int64_t i = 1; i < count; i++) {
    uint64_t word = in[i], lower = word < last ? word : last;
    int64_t slot = i - 1;
    last = word < last ? last : word;
    for (; slot > 0 && out[slot - 1] > lower; slot--) out[slot] = out[slot - 1];
    out[slot] = lower;
  }
  out[count - 1] = last;
}

/* Sorts words that differ only in their low `bits` bits; `scratch` has the same length. */
static void sort_words(uint64_t *words, int64_t count, int bits, uint64_t *scratch) {
  if (count <= FEW_WORDS || bits == 0) {
    insert_all(words, words, count);
    return;
  }
  uint32_t ends[1 << SLOT_BITS];
  int digit = 0;
  while (digit < SLOT_BITS && digit < bits && count >> digit) digit++;
  int rest = bits - digit;
  int64_t slots = INT64_C(1) << digit;
  uint64_t mask = (uint64_t)slots - 1;
  uint32_t begin = 0;
  memset(ends, 0, (size_t)slots * sizeof *ends);
  for (int64_t i = 0; i < count; i++) ends[words[i] >> rest & mask]++;
  uint32_t most = starts_of(ends, slots);
  for (int64_t i = 0; i < count; i++) scratch[ends[words[i] >> rest & mask]++] = words[i];
  for (int64_t s = 0; s < slots && most > FEW_WORDS; begin = ends[s++])
    if (ends[s] - begin > FEW_WORDS) sort_words(scratch + begin, ends[s] - begin, rest, words + begin);
  insert_all(scratch, words, count);
}

/* Writes the permutation of `count` elements, fewer than 2**32, to `out`. `use`: key and upper half of the counter of
 * Philox, which generates the words unless they are `given`. `kept`: space for `count` words, or NULL. NO_MEMORY: there is no
 * memory for the buckets. */
EXPORT int permute(const uint64_t *use, const uint64_t *given, int64_t count, uint64_t *out, uint64_t *kept) {
  Words words = {given, use};
  uint64_t some[AT_ONCE], low = 0;
  uint32_t begin = 0;
  int bits = 0;
  while (count - 1 > 0 && (uint64_t)(count - 1) > low) low = low << 1 | 1;
  while (bits < BUCKET_BITS && count >> bits > BUCKET_WORDS) bits++;
  int64_t buckets = INT64_C(1) << bits;
  uint32_t *ends = calloc((size_t)buckets, sizeof *ends);
  if (!ends) return NO_MEMORY;
  /* Few words are one bucket. Words are shifted in two steps, because a shift by 64 bits is undefined. */
  int shift = 63 - bits;
#define FOR_EACH_WORD(does) \
  for (int64_t first = 0; first < count; first += AT_ONCE) { \
    int64_t n = count - first < AT_ONCE ? count - first : AT_ONCE; \
    generate(&words, (uint64_t)first, n, some); \
    for (int64_t i = 0; i < n; i++) does; \
  }
  if (kept) {
    FOR_EACH_WORD((ends[some[i] >> 1 >> shift]++, kept[first + i] = some[i]))
    words.given = kept;
  } else {
    FOR_EACH_WORD(ends[some[i] >> 1 >> shift]++)
  }
  uint32_t most = starts_of(ends, buckets);
  uint64_t *scratch = malloc(((size_t)most + 1) * sizeof *scratch);
  if (!scratch) {
    free(ends);
    return NO_MEMORY;
  }
  FOR_EACH_WORD(out[ends[some[i] >> 1 >> shift]++] = (some[i] & ~low) | (uint64_t)(first + i))
  for (int64_t b = 0; b < buckets; begin = ends[b++]) {
    sort_words(out + begin, ends[b] - begin, 64 - bits, scratch);
    for (uint32_t i = begin; i < ends[b]; i++) out[i] &= low;
  }
  free(scratch);
  free(ends);
  return OK;
}
