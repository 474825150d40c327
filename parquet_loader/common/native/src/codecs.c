/* Decompression of pages. Every length is checked before it is used: each of them may be wrong. */
#include "codecs.h"

#include <string.h>

#include "kernels.h"
#include "thrift.h"

INLINE int copy_match(uint8_t **at, const uint8_t *begin, const uint8_t *end, uint64_t offset, uint64_t length) {
  uint8_t *out = *at;
  if (offset == 0 || offset > (uint64_t)(out - begin) || length > (uint64_t)(end - out)) return OTHER;
  const uint8_t *from = out - offset;
  *at = out + length;
  if (offset >= 16) {
    for (uint64_t done = 0; done < length; done += 16) memcpy(out + done, from + done, 16);
  } else if (offset >= 8) {
    for (uint64_t done = 0; done < length; done += 8) memcpy(out + done, from + done, 8);
  } else {
    for (uint64_t done = 0; done < length; done++) out[done] = from[done];
  }
  return OK;
}

INLINE int copy_literal(const uint8_t **in, const uint8_t *stop, uint8_t **at, const uint8_t *end, uint64_t length) {
  if (length > (uint64_t)(stop - *in) || length > (uint64_t)(end - *at)) return OTHER;
  if (length <= 16 && stop - *in >= 16) memcpy(*at, *in, 16);
  else memcpy(*at, *in, (size_t)length);
  *in += length, *at += length;
  return OK;
}

static int snappy(const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes) {
  const uint8_t *stop = in + in_bytes, *end = out + out_bytes;
  uint8_t *at = out;
  Thrift length_of = {in, stop, 0, 0};
  uint64_t total = thrift_varint(&length_of);
  if (length_of.is_short || length_of.is_wrong || total != (uint64_t)out_bytes) return OTHER;
  if (length_of.next - in > 5) return OTHER;  /* Snappy's own reader takes no more */
  in = length_of.next;
  while (in < stop) {
    uint8_t tag = *in++;
    uint64_t length = (uint64_t)(tag >> 2) + 1, offset;
    uint32_t extra = 0;
    switch (tag & 3) {
      case 0:
        if (length > 60) {
          int64_t nbytes = (int64_t)length - 60;
          if (stop - in < nbytes) return OTHER;
          memcpy(&extra, in, (size_t)nbytes);
          length = (uint64_t)extra + 1, in += nbytes;
        }
        if (copy_literal(&in, stop, &at, end, length)) return OTHER;
        continue;
      case 1:
        if (stop - in < 1) return OTHER;
        length = (uint64_t)((tag >> 2) & 7) + 4;
        offset = (uint64_t)(tag >> 5) << 8 | *in++;
        break;
      case 2:
        if (stop - in < 2) return OTHER;
        memcpy(&extra, in, 2);
        offset = extra, in += 2;
        break;
      default:
        if (stop - in < 4) return OTHER;
        memcpy(&extra, in, 4);
        offset = extra, in += 4;
    }
    if (copy_match(&at, out, end, offset, length)) return OTHER;
  }
  return at == end ? OK : OTHER;
}

static int lz4_length(const uint8_t **in, const uint8_t *stop, uint64_t *length) {
  uint8_t byte = 255;
  while (byte == 255) {
    if (*in >= stop) return OTHER;
    byte = *(*in)++;
    *length += byte;
  }
  return OK;
}

/* By the format the last 5 bytes are literals, and the last match begins 12 bytes before the end at least. */
static int lz4(const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes) {
  const uint8_t *stop = in + in_bytes, *end = out + out_bytes;
  uint8_t *at = out;
  while (in < stop) {
    uint8_t token = *in++;
    uint64_t length = token >> 4;
    if (length == 15 && lz4_length(&in, stop, &length)) return OTHER;
    if (copy_literal(&in, stop, &at, end, length)) return OTHER;
    if (in == stop) return at == end ? OK : OTHER;  /* the last sequence has no match */
    if (stop - in < 2 || end - at < 12) return OTHER;
    uint64_t offset = (uint64_t)in[0] | (uint64_t)in[1] << 8;
    in += 2;
    length = token & 15;
    if (length == 15 && lz4_length(&in, stop, &length)) return OTHER;
    if (copy_match(&at, out, end, offset, length + 4)) return OTHER;
    if (end - at < 5) return OTHER;
  }
  return OTHER;
}

int64_t most_expansion(int codec) { return codec == SNAPPY ? 64 : codec == LZ4_RAW ? 256 : 1; }

int decompress(int codec, const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes) {
  return codec == SNAPPY ? snappy(in, in_bytes, out, out_bytes) : lz4(in, in_bytes, out, out_bytes);
}
