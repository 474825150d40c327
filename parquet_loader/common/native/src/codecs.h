/* Decompression of pages. */
#ifndef CODECS_H
#define CODECS_H

#include <stdint.h>

enum { PLAIN_CODEC = 0, SNAPPY = 1, LZ4_RAW = 2, GZIP = 3, ZSTD = 4 };

/* State that the libraries keep between calls; initially all NULL. Used by one thread at a time. */
typedef struct {
  void *gzip, *zstd;
} Decompressors;

/* The largest number of bytes that a codec can produce from one compressed byte. */
int64_t most_expansion(int codec);

/* Decompresses all of `in` to exactly `out_bytes` at `out`, which has SLACK behind them. OTHER: the result has another size. */
int decompress(Decompressors *own, int codec, const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes);

void release_decompressors(Decompressors *own);

#endif
