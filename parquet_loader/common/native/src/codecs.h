/* Decompression of pages. */
#ifndef CODECS_H
#define CODECS_H

#include <stdint.h>

enum { PLAIN_CODEC = 0, SNAPPY = 1, LZ4_RAW = 2, GZIP = 3, ZSTD = 4 };

/* What the libraries need between calls; all NULL at first. Used by one thread at a time. */
typedef struct {
  void *gzip, *zstd;
} Decompressors;

/* The most bytes that a codec can give for one. */
int64_t most_expansion(int codec);

/* Decompresses all of `in` to exactly `out_bytes` at `out`, behind which there is SLACK. OTHER: these bytes do not give that
 * many. */
int decompress(Decompressors *own, int codec, const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes);

void release_decompressors(Decompressors *own);

#endif
