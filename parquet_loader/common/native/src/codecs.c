/* Decompression of pages. Every length comes from the file and is checked before it is used. */
#include "codecs.h"

#include <string.h>

#ifndef BUNDLED_CODECS
#include <dlfcn.h>
#endif

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

/* For each Snappy tag: the length, the upper bits of the offset, and whether it is RARE. */
#define RARE 0x100u  /* a long literal, or an offset of 4 bytes */
#define TAG(t) \
  [t] = ((t) & 3) == 3 || ((t) & 3 ? 0 : (t) >> 2 >= 60) ? RARE \
        : ((t) & 3) == 1 ? (((t) >> 2 & 7) + 4u) | (uint32_t)((t) >> 5) << 24 \
                         : ((t) >> 2) + 1u
#define TAGS4(t) TAG(t), TAG((t) + 1), TAG((t) + 2), TAG((t) + 3)
#define TAGS16(t) TAGS4(t), TAGS4((t) + 4), TAGS4((t) + 8), TAGS4((t) + 12)
#define TAGS64(t) TAGS16(t), TAGS16((t) + 16), TAGS16((t) + 32), TAGS16((t) + 48)
static const uint32_t snappy_tags[256] = {TAGS64(0), TAGS64(64), TAGS64(128), TAGS64(192)};

/* Decompresses from `*next` to `*to` while neither is near its end, and stops before a RARE tag, a match that overlaps
 * itself, or one that begins before the output. The order of literals and matches has no pattern, and a mispredicted
 * branch takes longer than a copy: so the same instructions copy both, at least 32 bytes. */
static void snappy_fast(const uint8_t **next, const uint8_t *stop, const uint8_t *begin, uint8_t **to, const uint8_t *end) {
  static const uint32_t offset_mask[4] = {0, 0xFF, 0xFFFF, 0};
  const uint8_t *in = *next;
  uint8_t *at = *to;
  while (stop - in > 64 + 5 && end - at > 64) {
    const uint64_t tag = *in, kind = tag & 3;
    const uint32_t entry = snappy_tags[tag];
    uint32_t low;
    memcpy(&low, in + 1, 4);
    const uint64_t length = entry & 0xFF, offset = (low & offset_mask[kind]) + (entry >> 16);
    const uint64_t nearest = length > 16 ? 16 : length;
    const int is_wrong = (offset < nearest) | (offset > (uint64_t)(at - begin));
    if ((is_wrong & (kind != 0)) | ((entry & RARE) != 0)) break;
    const uint8_t *match = at - offset, *literal = in + 1;
    const uint8_t *behind_match = in + kind + 1, *behind_literal = in + (tag >> 2) + 2;
    /* All four are computed here, so that compilers select one without a branch. */
    __asm__("" : "+r"(match), "+r"(literal), "+r"(behind_match), "+r"(behind_literal));
    const uint8_t *from = kind ? match : literal;
    in = kind ? behind_match : behind_literal;
    __asm__("" : "+r"(from), "+r"(in));
    memcpy(at, from, 16);
    memcpy(at + 16, from + 16, 16);
    if (length > 32) {
      memcpy(at + 32, from + 32, 16);
      memcpy(at + 48, from + 48, 16);
    }
    at += length;
  }
  *next = in, *to = at;
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
    snappy_fast(&in, stop, out, &at, end);
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

/* The format requires that the last 5 bytes are literals and that the last match begins at least 12 bytes before the end. */
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

/* ---- gzip and zstd: linked in (BUNDLED_CODECS, as in wheels), or the system's libraries, or Arrow decodes ---- */

/* zlib's `z_stream`, the same since 1995. */
typedef struct {
  const uint8_t *next_in;
  unsigned in_bytes;
  unsigned long total_in;
  uint8_t *next_out;
  unsigned out_bytes;
  unsigned long total_out;
  const char *message;
  void *state, *allocate, *release, *opaque;
  int data_type;
  unsigned long checksum, reserved;
} ZlibStream;

enum { ZLIB_GZIP_ONLY = 15 + 16, ZLIB_FINISH = 4, ZLIB_OK = 0, ZLIB_END = 1 };

static struct {
  void *(*deflate_new)(void);
  int (*deflate)(void *, const void *, size_t, void *, size_t, size_t *, size_t *);
  void (*deflate_free)(void *);
  const char *(*zlib_version)(void);
  int (*zlib_begin)(ZlibStream *, int, const char *, int);
  int (*zlib)(ZlibStream *, int);
  int (*zlib_end)(ZlibStream *);
  void *(*zstd_new)(void);
  size_t (*zstd)(void *, void *, size_t, const void *, size_t);
  size_t (*zstd_free)(void *);
} library;

#ifdef BUNDLED_CODECS

extern void *libdeflate_alloc_decompressor(void);
extern int libdeflate_gzip_decompress_ex(void *, const void *, size_t, void *, size_t, size_t *, size_t *);
extern void libdeflate_free_decompressor(void *);
extern void *ZSTD_createDCtx(void);
extern size_t ZSTD_decompressDCtx(void *, void *, size_t, const void *, size_t);
extern size_t ZSTD_freeDCtx(void *);

static int find_gzip(void) {
  library.deflate_new = libdeflate_alloc_decompressor;
  library.deflate = libdeflate_gzip_decompress_ex;
  library.deflate_free = libdeflate_free_decompressor;
  return 1;
}

static int find_zstd(void) {
  library.zstd_new = ZSTD_createDCtx;
  library.zstd = ZSTD_decompressDCtx;
  library.zstd_free = ZSTD_freeDCtx;
  return 1;
}

#else

static void *opened(const char *const *names) {
  void *found = NULL;
  for (; !found && *names; names++) found = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
  return found;
}

/* Sets a function pointer from a library, by memcpy: ISO C has no cast from a data pointer to a function pointer. */
static int set(void *function, void *from, const char *name) {
  void *found = dlsym(from, name);
  memcpy(function, &found, sizeof found);
  return found != NULL;
}

static int find_gzip(void) {
  static const char *const zlibs[] = {"libz.so.1", "libz.1.dylib", NULL};
  void *from;
#ifndef WITHOUT_LIBDEFLATE  /* tests of zlib define it */
  static const char *const deflates[] = {"libdeflate.so.0", "libdeflate.0.dylib", NULL};
  if ((from = opened(deflates)) && set(&library.deflate, from, "libdeflate_gzip_decompress_ex") &&
      set(&library.deflate_free, from, "libdeflate_free_decompressor") &&
      set(&library.deflate_new, from, "libdeflate_alloc_decompressor"))
    return 1;
#endif
  library.deflate_new = NULL;
  return (from = opened(zlibs)) && set(&library.zlib_begin, from, "inflateInit2_") &&
    set(&library.zlib, from, "inflate") && set(&library.zlib_end, from, "inflateEnd") &&
    set(&library.zlib_version, from, "zlibVersion");
}

static int find_zstd(void) {
  static const char *const zstds[] = {"libzstd.so.1", "libzstd.1.dylib", NULL};
  void *from = opened(zstds);
  return from && set(&library.zstd, from, "ZSTD_decompressDCtx") &&
    set(&library.zstd_new, from, "ZSTD_createDCtx") && set(&library.zstd_free, from, "ZSTD_freeDCtx");
}

#endif

/* Finds the libraries; returns one bit for each codec that can be decompressed. Called once, before all other functions. */
EXPORT int codecs_load(void) {
  int known = 1 << PLAIN_CODEC | 1 << SNAPPY | 1 << LZ4_RAW;
  if (find_gzip()) known |= 1 << GZIP;
  if (find_zstd()) known |= 1 << ZSTD;
  return known;
}

/* Leaves streams of several members, and those with a zlib header, to Arrow. */
static int gzip(Decompressors *own, const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes) {
  if (library.deflate_new) {
    size_t read = 0, written = 0;
    if (!own->gzip && !(own->gzip = library.deflate_new())) return NO_MEMORY;
    int problem = library.deflate(own->gzip, in, in_bytes, out, out_bytes, &read, &written);
    return !problem && read == in_bytes && written == out_bytes ? OK : OTHER;
  }
  if (in_bytes > INT32_MAX || out_bytes > INT32_MAX) return OTHER;
  ZlibStream stream = {
    .next_in = in, .in_bytes = (unsigned)in_bytes, .next_out = out, .out_bytes = (unsigned)out_bytes};
  if (library.zlib_begin(&stream, ZLIB_GZIP_ONLY, library.zlib_version(), (int)sizeof stream) != ZLIB_OK) return OTHER;
  int code = library.zlib(&stream, ZLIB_FINISH);
  library.zlib_end(&stream);
  return code == ZLIB_END && stream.in_bytes == 0 && stream.out_bytes == 0 ? OK : OTHER;
}

static int zstd(Decompressors *own, const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes) {
  if (!own->zstd && !(own->zstd = library.zstd_new())) return NO_MEMORY;
  return library.zstd(own->zstd, out, out_bytes, in, in_bytes) == out_bytes ? OK : OTHER;
}

void release_decompressors(Decompressors *own) {
  if (own->gzip) library.deflate_free(own->gzip);
  if (own->zstd) library.zstd_free(own->zstd);
}

int64_t most_expansion(int codec) {
  static const int64_t most[] = {[PLAIN_CODEC] = 1, [SNAPPY] = 64, [LZ4_RAW] = 256, [GZIP] = 1040, [ZSTD] = 1 << 15};
  return most[codec];
}

int decompress(
    Decompressors *own, int codec, const uint8_t *in, int64_t in_bytes, uint8_t *out, int64_t out_bytes) {
  switch (codec) {
    case SNAPPY: return snappy(in, in_bytes, out, out_bytes);
    case LZ4_RAW: return lz4(in, in_bytes, out, out_bytes);
    case GZIP: return gzip(own, in, (size_t)in_bytes, out, (size_t)out_bytes);
    case ZSTD: return zstd(own, in, (size_t)in_bytes, out, (size_t)out_bytes);
  }
  return OTHER;
}
