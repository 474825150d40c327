/* Seeded permutations: random words of Philox, sorted together with the numbers of their elements.
 *
 * The result equals that of numpy's sort in `common/permutations.py`, bit for bit. Words are distributed to buckets by their
 * first bits, then to slots of a word or two by the next bits, so that few comparisons remain. With a buffer for them, words
 * are not counted before they are distributed. Without one they are generated twice, to count and to distribute them: that
 * costs less than page faults on a new buffer.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "philox.h"

enum {
  AT_ONCE = 1024,       /* words generated at a time; a multiple of PHILOX_WORDS */
  BUCKET_WORDS = 2048,  /* in a bucket on average, if BUCKET_BITS suffice; these three are the fastest measured */
  BUCKET_BITS = 10,
  SPARE_DEVIATIONS = 7, /* space of a bucket beyond the average, in standard deviations: too small once in 10**9 permutations */
  SLOT_BITS = 12,
  FEW_WORDS = 24,       /* at most this many are sorted by insertion */
};

typedef struct {
  const uint64_t *given;  /* the words, or NULL to generate them */
  const uint64_t *use;    /* as in `philox_words` */
} Words;

/* Writes words to `out`, which has space for AT_ONCE; `first`: a multiple of 4. */
static void read_words(const Words *words, uint64_t first, int64_t count, uint64_t *out) {
  if (words->given) memcpy(out, words->given + first, (size_t)count * sizeof *out);
  else philox_words(words->use, first, count, out);
}

/* Writes `count` words of Philox to `out`; `use` as in `permute`. */
EXPORT void random_words(const uint64_t *use, int64_t count, uint64_t *out) {
  int64_t whole = count - count % PHILOX_WORDS;
  uint64_t last[PHILOX_WORDS];
  philox_words(use, 0, whole, out);
  philox_words(use, (uint64_t)whole, count - whole, last);
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

/* Sorts words that differ only in their low `bits` bits, to `out`, which may be the same or begin before them. `scratch` has
 * the same length; `words` change. */
static void sort_words(uint64_t *words, int64_t count, int bits, uint64_t *scratch, uint64_t *out) {
  if (count <= FEW_WORDS || bits == 0) {
    insert_all(words, out, count);
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
    if (ends[s] - begin > FEW_WORDS) sort_words(scratch + begin, ends[s] - begin, rest, words + begin, scratch + begin);
  insert_all(scratch, out, count);
}

/* Words with the same first bits. The last bits of each are replaced by the number of its element. */
typedef struct {
  uint64_t *begin, *end;  /* of the words */
  uint64_t *limit;        /* of the memory */
  uint64_t *unused;       /* so that a bucket is found without a multiplication */
} Bucket;

INLINE Bucket empty_bucket(uint64_t *begin, int64_t space) { return (Bucket){begin, begin, begin + space, NULL}; }

/* Words are shifted in two steps, because a shift by 64 bits is undefined. */
#define BUCKET_OF(word) ((word) >> 1 >> (63 - bits))
#define FOR_EACH_WORD(does) { \
  uint64_t some[AT_ONCE]; \
  for (int64_t first = 0; first < count; first += AT_ONCE) { \
    int64_t n = count - first < AT_ONCE ? count - first : AT_ONCE; \
    read_words(words, (uint64_t)first, n, some); \
    for (int64_t i = 0; i < n; i++) does \
  } \
}

/* Counts the words of each bucket, and places the buckets side by side in `out`. */
static void place_counted(const Words *words, int64_t count, int bits, uint64_t *out, Bucket *buckets) {
  uint32_t counts[1 << BUCKET_BITS] = {0};
  if (bits) FOR_EACH_WORD({ counts[BUCKET_OF(some[i])]++; })
  else counts[0] = (uint32_t)count;
  for (int64_t b = 0; b < INT64_C(1) << bits; out += counts[b++]) buckets[b] = empty_bucket(out, counts[b]);
}

/* Places buckets without counting: each has space for more random words than it is likely to get. Some are at the end of
 * `out`, if `kept` is too small for all. These come first, so that sorted words, which are written to `out` from its
 * beginning, overwrite no bucket that is not sorted. Returns 0 if there is too little memory. */
static int place_estimated(int64_t count, int bits, uint64_t *out, uint64_t *kept, Bucket *buckets) {
  int64_t number = INT64_C(1) << bits, space = count / number + 1, deviation = 0;
  while (deviation * deviation < space) deviation++;
  space += SPARE_DEVIATIONS * deviation;
  int64_t in_kept = count / space < number ? count / space : number, in_out = number - in_kept;
  if (in_out * space > count) return 0;
  for (int64_t b = 0; b < number; b++) {
    uint64_t *begin = b < in_out ? out + count - (in_out - b) * space : kept + (b - in_out) * space;
    buckets[b] = empty_bucket(begin, space);
  }
  return 1;
}

/* Distributes the words. Returns 0 if a bucket is too small. */
static int distribute(const Words *words, int64_t count, int bits, uint64_t low, Bucket *buckets) {
  FOR_EACH_WORD({
    Bucket *bucket = buckets + BUCKET_OF(some[i]);
    if (bucket->end == bucket->limit) return 0;
    *bucket->end++ = (some[i] & ~low) | (uint64_t)(first + i);
  })
  return 1;
}

/* Writes the permutation of `count` elements, fewer than 2**32, to `out`. `use`: key and upper half of the counter of
 * Philox, which generates the words unless they are `given`. `kept`: space for `count` words, or NULL. NO_MEMORY: there is no
 * memory for the buckets. */
EXPORT int permute(const uint64_t *use, const uint64_t *given, int64_t count, uint64_t *out, uint64_t *kept) {
  const Words words = {given, use};
  uint64_t low = 0;
  int bits = 0;
  while (count - 1 > 0 && (uint64_t)(count - 1) > low) low = low << 1 | 1;
  while (bits < BUCKET_BITS && count >> bits > BUCKET_WORDS) bits++;
  Bucket buckets[1 << BUCKET_BITS];
  if (!kept || !bits || !place_estimated(count, bits, out, kept, buckets) || !distribute(&words, count, bits, low, buckets)) {
    place_counted(&words, count, bits, out, buckets);
    distribute(&words, count, bits, low, buckets);
  }
  int64_t most = 0;
  for (int64_t b = 0; b < INT64_C(1) << bits; b++) {
    int64_t n = buckets[b].end - buckets[b].begin;
    most = n > most ? n : most;
  }
  uint64_t *scratch = malloc(((size_t)most + 1) * sizeof *scratch);
  if (!scratch) return NO_MEMORY;
  for (int64_t b = 0; b < INT64_C(1) << bits; b++) {
    int64_t n = buckets[b].end - buckets[b].begin;
    sort_words(buckets[b].begin, n, 64 - bits, scratch, out);
    for (int64_t i = 0; i < n; i++) out[i] &= low;
    out += n;
  }
  free(scratch);
  return OK;
}
