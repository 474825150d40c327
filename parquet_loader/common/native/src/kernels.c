/* Column chunks of flat numbers and fixed-width bytes, decoded from their pages to contiguous values.
 *
 * One call decodes some rows of many column chunks without the GIL. A page is accepted only if every level, run and
 * length in it adds up exactly; anything else (nulls, other encodings, damage) ends in an error code, and Arrow decodes
 * the column chunk or reports the error. So nothing here explains a fault, and every length is checked before it is
 * used: each of them may be wrong.
 *
 * `pages_check` serves the chunks that Arrow decodes: it walks over their page headers before Arrow allocates the sizes
 * that they claim.
 *
 * Values are little-endian in files and here; `library.py` loads this on such machines only.
 */
#define _FILE_OFFSET_BITS 64  /* places in files beyond 2 GiB, on machines of 32 bits, too */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "kernels.h"

enum { PLAIN_CODEC = 0, SNAPPY = 1, LZ4_RAW = 2 };
enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };
enum { IN_MEMORY, IN_FILE, CODED };  /* where a page's values are: plain, still in the file, or behind the dictionary */

#define SLACK 64  /* bytes behind a buffer of ours that may be read, or written, in vain */
#define BLOCK 1024  /* codes unpacked at a time */
#define LONGEST_HEADER (1 << 16)  /* of a page that is decoded here */
#define LONGEST_ARROW_HEADER (1 << 24)  /* Arrow's own limit */
#define BEHIND_CHUNK 100  /* bytes that Arrow reads behind a chunk: see `page_headers.py` */
#define MOST_PADDING 256  /* values behind the last one: runs come in groups of 8 values, DuckDB's in 256 */

typedef struct {
  uint8_t *bytes;
  int64_t capacity;
} Buffer;

static int reserve(Buffer *buffer, int64_t nbytes) {
  if (buffer->bytes && nbytes <= buffer->capacity) return OK;
  free(buffer->bytes);
  buffer->bytes = malloc((size_t)nbytes + SLACK);
  buffer->capacity = buffer->bytes ? nbytes : 0;
  return buffer->bytes ? OK : NO_MEMORY;
}

/* Gives a buffer to who has none. */
static void hand_over(Buffer *from, Buffer *to) {
  if (to->bytes || !from->bytes) return;
  *to = *from;
  *from = (Buffer){NULL, 0};
}

typedef struct {
  int64_t at, end;      /* the next page in the file, and the end of the chunk */
  int64_t rows;         /* rows behind the current page */
  int64_t width, out;   /* bytes of a value in the file, and of it the low ones that are delivered */
  int codec, optional;
  int plain_pages, coded_pages;  /* the encodings of data pages that the footer names */
  int always_compressed;  /* pages of version 2, whatever their headers say: old parquet-cpp, PARQUET-10353 */
  int had_pages;        /* a data page was read */
  int64_t left;         /* values of the current page that are still to come */
  int kind;             /* where they are */
  int64_t place;        /* IN_FILE: of the next value */
  const uint8_t *next, *stop;
  Buffer page, dictionary;
  int64_t entries;      /* -1: no dictionary was read */
  int bits;             /* CODED: of a code; then the run under way: */
  int64_t run_left, run_done;
  int is_literal;
  uint32_t repeated;
  const uint8_t *run;
} Column;

typedef struct {
  int file;
  const uint8_t *base;  /* the file's bytes in memory, or NULL */
  int64_t size;
  Buffer raw;           /* pages as they are compressed */
  Buffer page, dictionary;  /* of columns that are read to their end: the next one's, while they are in the cache */
  int64_t count;
  Column columns[];
} Group;

/* ---- bytes of the file ---- */

static int fetch(const Group *group, int64_t at, int64_t nbytes, uint8_t *out) {
  if (at < 0 || nbytes < 0 || at > group->size - nbytes) return ENDED;
  if (group->base) {
    memcpy(out, group->base + at, (size_t)nbytes);
    return OK;
  }
  while (nbytes > 0) {
    ssize_t got = pread(group->file, out, (size_t)nbytes, (off_t)at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SYSTEM;
    if (got == 0) return ENDED;
    out += got, at += got, nbytes -= got;
  }
  return OK;
}

/* ---- Thrift's compact protocol, and page headers in it ---- */

typedef struct {
  const uint8_t *next, *stop;
  int is_short, is_wrong;
} Thrift;

enum { KIND_I16 = 4, KIND_I32 = 5, KIND_I64 = 6, KIND_BINARY = 8, KIND_LIST = 9, KIND_STRUCT = 12 };
enum { MOST_NESTED = 32 };  /* structs and lists in one another */

enum { V1 = 1, DICTIONARY = 2, V2 = 3 };  /* the structs in a page header that are read; 0 is the header itself */
enum { KIND = 1, PLAIN_BYTES = 2, PAGE_BYTES = 3 };  /* fields of the header */
enum { VALUES = 1, ENCODING = 2, LEVELS_ENCODING = 3 };  /* of V1, and but for the last of DICTIONARY */
enum { V2_NULLS = 2, V2_ROWS = 3, V2_ENCODING = 4, V2_LEVELS_BYTES = 5, V2_REPETITION_BYTES = 6, V2_IS_COMPRESSED = 7 };

/* A bit for each field that a reader of the format insists on; bit 0: the struct is there. */
static const uint32_t REQUIRED[4] = {0xE, 0x1E, 0x6, 0x7E};

typedef struct {
  int64_t fields[4][8];
  uint32_t seen[4];
  int is_compressed;
  int64_t nbytes;
} Header;

static uint8_t thrift_byte(Thrift *t) {
  if (t->next >= t->stop) {
    t->is_short = 1;
    return 0;
  }
  return *t->next++;
}

static uint64_t thrift_varint(Thrift *t) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = thrift_byte(t);
    value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  t->is_wrong = 1;
  return 0;
}

static int64_t thrift_int(Thrift *t) {
  uint64_t value = thrift_varint(t);
  return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static int is_going(const Thrift *t) { return !t->is_short && !t->is_wrong; }

/* The next field of a struct, or 0 behind the last one. */
static int next_field(Thrift *t, int64_t *field, uint64_t *seen, int *kind) {
  uint8_t head = thrift_byte(t);
  if (head == 0 || !is_going(t)) return 0;
  *field = head >> 4 ? *field + (head >> 4) : thrift_int(t);
  *kind = head & 0x0F;
  if (*field < INT16_MIN || *field > INT16_MAX) t->is_wrong = 1;
  if (*field >= 0 && *field < 64) {  /* readers may differ in which of two they take */
    if (*seen >> *field & 1) t->is_wrong = 1;
    *seen |= UINT64_C(1) << *field;
  }
  return is_going(t);
}

static int64_t thrift_int32(Thrift *t) {
  int64_t value = thrift_int(t);
  if (value < INT32_MIN || value > INT32_MAX) t->is_wrong = 1;
  return value;
}

static void thrift_skip_bytes(Thrift *t, uint64_t nbytes) {
  if (nbytes > (uint64_t)(t->stop - t->next)) t->is_short = 1;
  else t->next += nbytes;
}

static int64_t thrift_count(Thrift *t, int *kind) {
  uint8_t head = thrift_byte(t);
  uint64_t count = head >> 4 < 15 ? head >> 4 : thrift_varint(t);
  *kind = head & 0x0F;
  if (count > (uint64_t)(t->stop - t->next)) t->is_short = 1;
  return is_going(t) ? (int64_t)count : 0;
}

/* Passes over a value. */
static void thrift_skip(Thrift *t, int kind, int depth) {
  int64_t field = 0, count;
  uint64_t seen = 0;
  int inner, kinds[2], each = 1;
  switch (kind) {
    case 1: case 2: return;
    case 3: thrift_byte(t); return;
    case 4: case 5: case 6: thrift_varint(t); return;
    case 7: thrift_skip_bytes(t, 8); return;
    case 8: thrift_skip_bytes(t, thrift_varint(t)); return;
    case 9: case 10: case 11:
      if (depth >= MOST_NESTED) break;
      if (kind == 11) {
        uint64_t entries = thrift_varint(t);
        if (entries > (uint64_t)(t->stop - t->next)) t->is_short = 1;
        count = is_going(t) ? (int64_t)entries : 0;
        uint8_t both = count ? thrift_byte(t) : 0;
        kinds[0] = both >> 4, kinds[1] = both & 0x0F, each = 2;
      } else {
        count = thrift_count(t, &kinds[0]);
      }
      for (; count > 0 && is_going(t); count--)
        for (int i = 0; i < each; i++)  /* a bool takes a byte in a list, and none as a field */
          thrift_skip(t, kinds[i] == 1 || kinds[i] == 2 ? 3 : kinds[i], depth + 1);
      return;
    case 12:
      if (depth >= MOST_NESTED) break;
      while (next_field(t, &field, &seen, &inner)) thrift_skip(t, inner, depth + 1);
      return;
  }
  t->is_wrong = 1;
}

/* Reads a struct of a page header; as in Thrift's own code, a field of another type is skipped like one that is not
 * known. `part`: which struct. */
static void thrift_struct(Thrift *t, Header *header, int part) {
  int64_t field = 0;
  uint64_t seen = 0;
  int kind, inner;
  header->seen[part] |= 1;
  while (next_field(t, &field, &seen, &kind)) {
    int is_known = field > 0 && field < 8 && REQUIRED[part] >> field & 1;
    if (is_known && kind == KIND_I32) {
      header->fields[part][field] = thrift_int32(t);
      header->seen[part] |= 1u << field;
    } else if (part == V2 && field == V2_IS_COMPRESSED && (kind == 1 || kind == 2)) {
      header->is_compressed = kind == 1;
    } else if (part == 0 && kind == KIND_STRUCT &&
               (inner = field == 5 ? V1 : field == 7 ? DICTIONARY : field == 8 ? V2 : 0)) {
      thrift_struct(t, header, inner);
    } else {
      thrift_skip(t, kind, 0);
    }
  }
  if (!t->is_short && REQUIRED[part] & ~header->seen[part]) t->is_wrong = 1;
}

/* Reads the page header at byte `at` of a chunk that ends at byte `end`; OTHER: it is none, or longer than `most`. */
static int read_header(Group *group, int64_t at, int64_t end, int64_t most, Header *header) {
  uint8_t first[128], *more = NULL;
  int code = OTHER;
  for (int64_t nbytes = sizeof first; nbytes <= most; nbytes *= 8) {
    int64_t there = end - at < nbytes ? end - at : nbytes;
    if (nbytes > (int64_t)sizeof first) {
      free(more);
      if (!(more = malloc((size_t)nbytes))) return NO_MEMORY;
    }
    uint8_t *bytes = more ? more : first;
    if ((code = fetch(group, at, there, bytes)) != OK) break;
    Thrift t = {bytes, bytes + there, 0, 0};
    *header = (Header){.is_compressed = 1};
    thrift_struct(&t, header, 0);
    header->nbytes = t.next - bytes;
    if (!t.is_short) {
      code = t.is_wrong ? OTHER : OK;
      break;
    }
    code = OTHER;
    if (there < nbytes) break;
  }
  free(more);
  return code;
}

/* ---- decompression: from `in` to exactly `out_bytes` at `out`, behind which there is SLACK ---- */

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

/* The most bytes that a codec can give for one. */
static int64_t most_expansion(int codec) { return codec == SNAPPY ? 64 : codec == LZ4_RAW ? 256 : 1; }

/* Puts `out_bytes` of a page that takes `nbytes` in the file at `out`. */
static int unpacked(Group *group, int codec, int64_t at, int64_t nbytes, uint8_t *out, int64_t out_bytes) {
  int code;
  if (codec == PLAIN_CODEC) return nbytes == out_bytes ? fetch(group, at, nbytes, out) : OTHER;
  if (nbytes == 0) return OTHER;
  const uint8_t *in;
  if (group->base) {
    if (at < 0 || nbytes < 0 || at > group->size - nbytes) return ENDED;
    in = group->base + at;
  } else {
    if ((code = reserve(&group->raw, nbytes)) || (code = fetch(group, at, nbytes, group->raw.bytes))) return code;
    in = group->raw.bytes;
  }
  return codec == SNAPPY ? snappy(in, nbytes, out, out_bytes) : lz4(in, nbytes, out, out_bytes);
}

/* ---- levels and codes: runs of one value, and of values packed by bits ---- */

INLINE int run_header(const uint8_t **next, const uint8_t *stop, uint64_t *header) {
  if (*next < stop && **next < 0x80) {  /* most of them are a byte */
    *header = *(*next)++;
    return OK;
  }
  Thrift t = {*next, stop, 0, 0};
  *header = thrift_varint(&t);
  *next = t.next;
  return t.is_short || t.is_wrong ? OTHER : OK;
}

typedef struct {
  int is_literal;
  uint64_t count;       /* values, those behind the last one included */
  const uint8_t *values;
  uint32_t repeated;
} Run;

/* Reads the run at `next`, of which `values` are wanted; its bytes have to be there, and its values to fit into `bits`. */
INLINE int read_run(const uint8_t **next, const uint8_t *stop, int64_t values, int bits, Run *run) {
  uint64_t header;
  if (run_header(next, stop, &header) || header >> 1 == 0) return OTHER;
  uint64_t count = header >> 1, there = (uint64_t)(stop - *next);
  run->is_literal = (int)(header & 1);
  run->values = *next;
  if (run->is_literal) {
    if (count > ((uint64_t)values + MOST_PADDING - 1) / 8) return OTHER;
    if (count * (uint64_t)bits > there) return OTHER;
    *next += count * (uint64_t)bits;
    run->count = count * 8;
    return OK;
  }
  uint64_t nbytes = (uint64_t)(bits + 7) / 8;
  if (count > (uint64_t)values || there < nbytes) return OTHER;
  run->repeated = 0;
  for (uint64_t i = 0; i < nbytes; i++) run->repeated |= (uint32_t)*(*next)++ << 8 * i;
  run->count = count;
  return bits == 32 || run->repeated >> bits == 0 ? OK : OTHER;
}

/* Whether runs give so many values of so many bits, and end with their bytes. */
static int runs_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int bits) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, bits, &run)) return 0;
    values -= (int64_t)run.count;
  }
  return next == stop;
}

/* Whether the definition levels of a page say that no value is null: 1 for each, and nothing behind them. */
static int all_defined(const uint8_t *next, const uint8_t *stop, int64_t values) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, 1, &run)) return 0;
    if (!run.is_literal && run.repeated != 1) return 0;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count;
    if (run.is_literal) {
      for (int64_t i = 0; i < some; i += 8) {
        uint8_t mask = some - i >= 8 ? 0xFF : (uint8_t)((1 << (some - i)) - 1);
        if ((run.values[i / 8] & mask) != mask) return 0;
      }
    }
    values -= some;
  }
  return next == stop;
}

INLINE void unpack_bits(const uint8_t *in, uint32_t *out, int64_t count, const int bits) {
  for (int64_t i = 0; i < count; i += 8, in += bits)
    for (int j = 0; j < 8; j++) {
      uint64_t word;
      memcpy(&word, in + (j * bits >> 3), 8);
      out[i + j] = (uint32_t)((word >> (j * bits & 7)) & ((UINT64_C(1) << bits) - 1));
    }
}

/* Unpacks codes, a multiple of 8; up to 8 bytes behind the last one are read in vain. */
FOR_EACH_TARGET static void unpack(const uint8_t *in, uint32_t *out, int64_t count, int bits) {
  switch (bits) {
#define BITS(n) case n: unpack_bits(in, out, count, n); break;
    BITS(1) BITS(2) BITS(3) BITS(4) BITS(5) BITS(6) BITS(7) BITS(8) BITS(9) BITS(10) BITS(11) BITS(12) BITS(13)
    BITS(14) BITS(15) BITS(16) BITS(17) BITS(18) BITS(19) BITS(20) BITS(21) BITS(22) BITS(23) BITS(24) BITS(25)
    BITS(26) BITS(27) BITS(28) BITS(29) BITS(30) BITS(31) BITS(32)
    default: memset(out, 0, (size_t)count * sizeof *out);
  }
}

FOR_EACH_TARGET static uint32_t largest(const uint32_t *codes, int64_t count) {
  uint32_t most = 0;
  for (int64_t i = 0; i < count; i++) most = codes[i] > most ? codes[i] : most;
  return most;
}

/* A function of a width that is known where it is compiled, for each of those that numbers have. */
#define FOR_WIDTH(width, does) \
  switch (width) { \
    case 1: does(1); break; \
    case 2: does(2); break; \
    case 4: does(4); break; \
    case 8: does(8); break; \
    default: does(width); \
  }

static void fill(const uint8_t *value, int64_t width, int64_t count, uint8_t *out) {
#define FILL(w) for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, value, (size_t)(w))
  FOR_WIDTH(width, FILL)
}

/* Keeps the low bytes of each value; `out` may be `in`. */
static void narrow(const uint8_t *in, int64_t width, int64_t count, int64_t kept, uint8_t *out) {
  if (width == 4 && kept == 1) for (int64_t i = 0; i < count; i++) out[i] = in[4 * i];
  else for (int64_t i = 0; i < count; i++) memmove(out + kept * i, in + width * i, (size_t)kept);
}

FOR_EACH_TARGET static void look_up(
    const uint32_t *codes, int64_t count, const uint8_t *entries, int64_t width, uint8_t *out) {
#define LOOK_UP(w) for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, entries + (w) * (int64_t)codes[i], (size_t)(w))
  FOR_WIDTH(width, LOOK_UP)
}

static int begin_run(Column *column, int64_t values) {
  Run run;
  if (read_run(&column->next, column->stop, values, column->bits, &run)) return OTHER;
  column->is_literal = run.is_literal;
  column->run = run.values;
  column->repeated = run.repeated;
  column->run_done = 0;
  column->run_left = (int64_t)run.count;
  return run.is_literal || (int64_t)run.repeated < column->entries ? OK : OTHER;
}

static int look_up_rows(Column *column, int64_t rows, uint8_t *out) {
  uint32_t codes[BLOCK + 8];
  int64_t values = column->left;
  while (rows > 0) {
    if (column->run_left == 0 && begin_run(column, values)) return OTHER;
    int64_t some = rows < column->run_left ? rows : column->run_left;
    if (!out) {
      /* passed over */
    } else if (column->is_literal) {
      if (some > BLOCK) some = BLOCK;
      int64_t skipped = column->run_done % 8, whole = (skipped + some + 7) / 8 * 8;
      const uint8_t *from = column->run + column->run_done / 8 * column->bits;
      /* What is read beyond these bytes is less than a group of 8 codes and 8 bytes, and so within SLACK. */
      if (column->next - from < ((skipped + some) * column->bits + 7) / 8) return OTHER;
      unpack(from, codes, whole, column->bits);
      if ((int64_t)largest(codes + skipped, some) >= column->entries) return OTHER;
      look_up(codes + skipped, some, column->dictionary.bytes, column->out, out);
    } else {
      fill(column->dictionary.bytes + column->repeated * column->out, column->out, some, out);
    }
    column->run_done += some, column->run_left -= some, rows -= some, values -= some;
    if (out) out += some * column->out;
  }
  return OK;
}

/* ---- pages ---- */

static int read_dictionary(Group *group, Column *column, const Header *header) {
  int64_t encoding = header->fields[DICTIONARY][ENCODING], values = header->fields[DICTIONARY][VALUES];
  int64_t nbytes = values * column->width, page_bytes = header->fields[0][PAGE_BYTES];
  int code;
  if (!header->seen[DICTIONARY] || column->entries >= 0 || column->had_pages || values < 0) return OTHER;
  if ((encoding != PLAIN && encoding != PLAIN_DICTIONARY) || header->fields[0][PLAIN_BYTES] != nbytes) return OTHER;
  if (nbytes > page_bytes * most_expansion(column->codec)) return OTHER;
  if ((code = reserve(&column->dictionary, nbytes))) return code;
  int64_t at = column->at + header->nbytes;
  if ((code = unpacked(group, column->codec, at, page_bytes, column->dictionary.bytes, nbytes))) return code;
  if (column->out < column->width)
    narrow(column->dictionary.bytes, column->width, values, column->out, column->dictionary.bytes);
  column->entries = values;
  return OK;
}

static int begin_page(Group *group, Column *column, const Header *header) {
  int is_second = header->fields[0][KIND] == DATA_PAGE_V2, part = is_second ? V2 : V1, code;
  const int64_t *fields = header->fields[part];
  int64_t at = column->at + header->nbytes, values = fields[VALUES], levels = 0;
  int64_t page_bytes = header->fields[0][PAGE_BYTES], plain_bytes = header->fields[0][PLAIN_BYTES];
  int64_t encoding = fields[is_second ? V2_ENCODING : ENCODING];
  int is_coded = encoding == RLE_DICTIONARY || encoding == PLAIN_DICTIONARY;
  int codec = !is_second || header->is_compressed || column->always_compressed ? column->codec : PLAIN_CODEC;
  if (!header->seen[part] || values <= 0 || values > column->rows) return OTHER;
  if (!(is_coded ? column->coded_pages : encoding == PLAIN && column->plain_pages)) return OTHER;
  if (plain_bytes > values * (column->width + 8) + LONGEST_HEADER) return OTHER;
  if (plain_bytes > page_bytes * most_expansion(codec)) return OTHER;
  if (is_second) {
    levels = fields[V2_LEVELS_BYTES];
    if (fields[V2_NULLS] || fields[V2_ROWS] != values || fields[V2_REPETITION_BYTES]) return OTHER;
    if (levels < 0 || levels > page_bytes || levels > plain_bytes || !levels != !column->optional) return OTHER;
  } else if (column->optional && fields[LEVELS_ENCODING] != RLE) {
    return OTHER;
  }
  column->had_pages = 1;
  column->rows -= values;
  column->left = values;
  /* The last page ends with the chunk. */
  if (column->rows == 0 && at + page_bytes != column->end) return OTHER;
  if (levels) {
    if ((code = reserve(&column->page, levels)) || (code = fetch(group, at, levels, column->page.bytes))) return code;
    if (!all_defined(column->page.bytes, column->page.bytes + levels, values)) return OTHER;
  }
  int64_t nbytes = plain_bytes - levels;
  int has_levels = !is_second && column->optional;
  if (codec == PLAIN_CODEC && !is_coded && !has_levels && column->out == column->width && !group->base) {
    if (page_bytes != plain_bytes || nbytes != values * column->width) return OTHER;
    column->kind = IN_FILE;
    column->place = at + levels;
    return OK;
  }
  if ((code = reserve(&column->page, nbytes))) return code;
  if ((code = unpacked(group, codec, at + levels, page_bytes - levels, column->page.bytes, nbytes))) return code;
  column->next = column->page.bytes;
  column->stop = column->next + nbytes;
  if (has_levels) {
    uint32_t length;
    if (nbytes < 4) return OTHER;
    memcpy(&length, column->next, 4);
    column->next += 4;
    if (length > (uint64_t)(column->stop - column->next)) return OTHER;
    if (!all_defined(column->next, column->next + length, values)) return OTHER;
    column->next += length;
  }
  if (!is_coded) {
    column->kind = IN_MEMORY;
    return column->stop - column->next == values * column->width ? OK : OTHER;
  }
  column->kind = CODED;
  column->run_left = 0;
  if (column->entries < 0 || column->next >= column->stop) return OTHER;
  column->bits = *column->next++;
  return column->bits <= 32 && runs_add_up(column->next, column->stop, values, column->bits) ? OK : OTHER;
}

static int next_page(Group *group, Column *column) {
  Header header;
  int code;
  if (column->at < 0 || column->at >= column->end) return ENDED;
  if ((code = read_header(group, column->at, column->end, LONGEST_HEADER, &header))) return code;
  int64_t page_bytes = header.fields[0][PAGE_BYTES], kind = header.fields[0][KIND];
  int64_t room = column->end - column->at - header.nbytes;
  if (page_bytes < 0 || page_bytes > room || header.fields[0][PLAIN_BYTES] < 0) return OTHER;
  if (kind == DICTIONARY_PAGE) code = read_dictionary(group, column, &header);
  else if (kind == DATA_PAGE || kind == DATA_PAGE_V2) code = begin_page(group, column, &header);
  else code = OTHER;
  column->at += header.nbytes + page_bytes;
  return code;
}

static int read_rows(Group *group, Column *column, int64_t rows, uint8_t *out) {
  int code = OK;
  while (rows > 0 && code == OK) {
    if (column->left == 0) {
      code = next_page(group, column);
      continue;
    }
    int64_t some = rows < column->left ? rows : column->left, nbytes = some * column->out;
    if (column->kind == IN_FILE) {
      if (out) code = fetch(group, column->place, nbytes, out);
      column->place += nbytes;
    } else if (column->kind == CODED) {
      code = look_up_rows(column, some, out);
    } else {
      if (out && column->out == column->width) memcpy(out, column->next, (size_t)nbytes);
      else if (out) narrow(column->next, column->width, some, column->out, out);
      column->next += some * column->width;
    }
    column->left -= some, rows -= some;
    if (out) out += nbytes;
  }
  return code;
}

/* ---- rows put into order ---- */

FOR_EACH_TARGET static void take(const uint8_t *in, const uint32_t *rows, int64_t count, int64_t width, uint8_t *out) {
#define TAKE(w) for (int64_t i = 0; i < count; i++) memcpy(out + (w) * i, in + (w) * (int64_t)rows[i], (size_t)(w))
  FOR_WIDTH(width, TAKE)
}

/* As `take`, past the cache: a line that is written whole need not be read before. */
INLINE void stream_rows(const uint8_t *in, const uint32_t *rows, int64_t count, const int64_t width, uint8_t *out) {
  int64_t i = 0;
#ifdef __SSE2__
  const int64_t in_line = 64 / width;
  for (; i < count && ((uintptr_t)out & 63); i++, out += width) memcpy(out, in + width * rows[i], (size_t)width);
  for (; i + in_line <= count; i += in_line, out += 64) {
    uint8_t line[64];
    for (int64_t j = 0; j < in_line; j++) memcpy(line + width * j, in + width * rows[i + j], (size_t)width);
    for (int64_t j = 0; j < 64; j += 16) _mm_stream_si128((__m128i *)(out + j), _mm_loadu_si128((const __m128i *)(line + j)));
  }
#endif
  for (; i < count; i++, out += width) memcpy(out, in + width * rows[i], (size_t)width);
}

static void take_past_cache(const uint8_t *in, const uint32_t *rows, int64_t count, int64_t width, uint8_t *out) {
  switch (width) {
    case 1: stream_rows(in, rows, count, 1, out); break;
    case 2: stream_rows(in, rows, count, 2, out); break;
    case 4: stream_rows(in, rows, count, 4, out); break;
    case 8: stream_rows(in, rows, count, 8, out); break;
    default: take(in, rows, count, width, out);
  }
#ifdef __SSE2__
  _mm_sfence();
#endif
}

/* Copies a row of 16 bytes or more. */
INLINE void copy_row(const uint8_t *in, int64_t width, uint8_t *out) {
  for (int64_t done = 0; done + 16 <= width; done += 16) memcpy(out + done, in + done, 16);
  memcpy(out + width - 16, in + width - 16, 16);
}

#define ROWS_AHEAD 16  /* that are fetched from memory before their turn: measured, a third less time on rows of 52 bytes */
#define MATRIX_BLOCK_BYTES (1 << 14)  /* of rows that are written column by column: measured, those that stay in the first cache */

/* ---- what Python calls ---- */

/* Of the source that this was compiled from. */
EXPORT const char *kernels_digest(void) { return DIGEST; }

/* Column chunks to be read forward. Each of `count` lines of 10 numbers says: first byte in the file, byte behind the
 * last, rows, bytes of a value, bytes of it to deliver, codec, whether there may be nulls, whether data pages may be
 * plain, and coded, whether pages of version 2 are always compressed. NULL: no memory. */
EXPORT void *chunks_open(int file, const uint8_t *base, int64_t size, const int64_t *lines, int64_t count) {
  Group *group = calloc(1, sizeof(Group) + (size_t)count * sizeof(Column));
  if (!group) return NULL;
  group->file = file, group->base = base, group->size = size, group->count = count;
  for (int64_t i = 0; i < count; i++, lines += 10) {
    Column *column = &group->columns[i];
    column->at = lines[0], column->end = lines[1], column->rows = lines[2];
    column->width = lines[3], column->out = lines[4];
    column->codec = (int)lines[5], column->optional = (int)lines[6];
    column->plain_pages = (int)lines[7], column->coded_pages = (int)lines[8], column->always_compressed = (int)lines[9];
    column->entries = -1;
  }
  return group;
}

/* Writes the next rows of each column to its place in `outs`, or passes over them where that is NULL. Not 0: nothing
 * more can be read from these chunks. */
EXPORT int chunks_read(void *chunks, int64_t rows, uint8_t *const *outs) {
  Group *group = chunks;
  for (int64_t i = 0; i < group->count; i++) {
    Column *column = &group->columns[i];
    hand_over(&group->page, &column->page);
    hand_over(&group->dictionary, &column->dictionary);
    int code = read_rows(group, column, rows, outs ? outs[i] : NULL);
    if (code) return code;
    if (column->rows == 0 && column->left == 0) {
      hand_over(&column->page, &group->page);
      hand_over(&column->dictionary, &group->dictionary);
      column->entries = -1;
    }
  }
  return OK;
}

enum { NO_HEADER = 1, LONGER_THAN_CHUNK, LARGER_THAN_CODEC, LARGER_THAN_FOOTER, TOO_MANY_ENTRIES, TOO_MANY_VALUES };

/* Returns which claim of a page header its chunk cannot keep, or 0; `said` gets what it claims and what there is. See
 * `pages_check`. */
static int64_t wrong_claim(const Header *header, const int64_t *line, int64_t room, int64_t *said) {
  int64_t values = line[2], expansion = line[4], largest = line[5];
  int64_t kind = header->fields[0][KIND], page_bytes = header->fields[0][PAGE_BYTES];
  int64_t plain_bytes = header->fields[0][PLAIN_BYTES];
  said[0] = page_bytes, said[1] = room > 0 ? room : 0;
  if (page_bytes < 0 || page_bytes > room + BEHIND_CHUNK) return LONGER_THAN_CHUNK;
  said[0] = plain_bytes, said[1] = page_bytes * expansion;
  if (plain_bytes < 0 || (expansion > 1 && plain_bytes > said[1])) return LARGER_THAN_CODEC;
  if (expansion != 1 && plain_bytes > (said[1] = largest)) return LARGER_THAN_FOOTER;
  if (kind == DICTIONARY_PAGE) {
    said[0] = header->fields[DICTIONARY][VALUES];
    said[1] = (expansion == 1 ? page_bytes : plain_bytes) / (line[3] > 1 ? line[3] : 1);
    return said[0] < 0 || said[0] > said[1] ? TOO_MANY_ENTRIES : 0;
  }
  if (kind == DATA_PAGE || kind == DATA_PAGE_V2) {
    said[0] = header->fields[kind == DATA_PAGE ? V1 : V2][VALUES], said[1] = values;
    if (said[0] < 0 || said[0] > values) return TOO_MANY_VALUES;
  }
  return 0;
}

/* Walks over the page headers of column chunks, as far as Arrow would read them. Each of `count` lines of 6 numbers
 * says: first byte in the file, byte behind the last, values, least bytes of a dictionary's entry,
 * bytes that the codec gives at most for one (1: there is none, 0: not known), bytes that a page may take decompressed.
 * OTHER: a header claims more than its chunk can keep; `report` gets the line's number, what is wrong, the header's
 * place, what it claims, and what there is. */
EXPORT int pages_check(int file, const uint8_t *base, int64_t size, const int64_t *lines, int64_t count, int64_t *report) {
  Group group = {.file = file, .base = base, .size = size};
  for (int64_t i = 0; i < count; i++, lines += 6) {
    int64_t at = lines[0], end = lines[1] < size ? lines[1] : size, left = lines[2];
    while (left > 0 && at >= 0 && at < end) {  /* Arrow refuses places before the file */
      Header header;
      int64_t behind = end + BEHIND_CHUNK < size ? end + BEHIND_CHUNK : size;
      int code = read_header(&group, at, behind, LONGEST_ARROW_HEADER, &header);
      report[0] = i, report[1] = NO_HEADER, report[2] = at, report[3] = report[4] = 0;
      if (code) return code;
      if ((report[1] = wrong_claim(&header, lines, end - at - header.nbytes, report + 3))) return OTHER;
      int64_t kind = header.fields[0][KIND];
      if (kind == DATA_PAGE || kind == DATA_PAGE_V2) left -= header.fields[kind == DATA_PAGE ? V1 : V2][VALUES];
      at += header.nbytes + header.fields[0][PAGE_BYTES];
    }
  }
  return OK;
}

EXPORT void chunks_close(void *chunks) {
  Group *group = chunks;
  for (int64_t i = 0; i < group->count; i++) {
    free(group->columns[i].page.bytes);
    free(group->columns[i].dictionary.bytes);
  }
  free(group->raw.bytes);
  free(group->page.bytes);
  free(group->dictionary.bytes);
  free(group);
}

/* Puts columns of `width` bytes a value side by side: `out` is their matrix in C order. */
EXPORT void columns_join(const uint8_t *const *columns, int64_t column_count, int64_t width, int64_t rows, uint8_t *out) {
  int64_t stride = column_count * width, at_once = MATRIX_BLOCK_BYTES / stride + 1;
  for (int64_t first = 0; first < rows; first += at_once) {
    int64_t some = rows - first < at_once ? rows - first : at_once;
    for (int64_t c = 0; c < column_count; c++) {
      const uint8_t *in = columns[c] + first * width;
      uint8_t *to = out + first * stride + c * width;
#define JOIN(w) for (int64_t i = 0; i < some; i++) memcpy(to + i * stride, in + (w) * i, (size_t)(w))
      FOR_WIDTH(width, JOIN)
    }
  }
}

/* Row i of each of `outs` becomes row `rows[i]` of that column, which has `widths` bytes a row; `is_large`: so much is
 * written that it will have left the caches when it is read. */
EXPORT void columns_take(
    const uint8_t *const *columns, const int64_t *widths, int64_t column_count, const uint32_t *rows, int64_t count,
    uint8_t *const *outs, int is_large) {
  for (int64_t c = 0; c < column_count; c++) {
    if (is_large) take_past_cache(columns[c], rows, count, widths[c], outs[c]);
    else take(columns[c], rows, count, widths[c], outs[c]);
  }
}

/* Row i of `out` becomes row `rows[i]` of `in`, both of `width` bytes a row. */
EXPORT void rows_take(const uint8_t *in, int64_t width, const uint32_t *rows, int64_t count, uint8_t *out) {
  for (int64_t i = 0; i < count; i++, out += width) {
    if (i + ROWS_AHEAD < count) {
      const uint8_t *later = in + (int64_t)rows[i + ROWS_AHEAD] * width;
      for (int64_t at = 0; at < width; at += 64) __builtin_prefetch(later + at);
      __builtin_prefetch(later + width - 1);
    }
    const uint8_t *row = in + (int64_t)rows[i] * width;
    if (width >= 16) copy_row(row, width, out);
    else memcpy(out, row, (size_t)width);
  }
}

/* Rows of bytes that differ in length: row i of `out`, which begins at byte `places[i]`, becomes row `rows[i]` of `in`,
 * which begins at byte `offsets[rows[i]]` and ends where the next one begins. */
EXPORT void ragged_take(
    const uint8_t *in, const int64_t *offsets, const int64_t *rows, int64_t count, const int64_t *places, uint8_t *out) {
  for (int64_t i = 0; i < count; i++) {
    if (i + 2 * ROWS_AHEAD < count) __builtin_prefetch(offsets + rows[i + 2 * ROWS_AHEAD]);
    if (i + ROWS_AHEAD < count) __builtin_prefetch(in + offsets[rows[i + ROWS_AHEAD]]);
    int64_t begin = offsets[rows[i]];
    memcpy(out + places[i], in + begin, (size_t)(offsets[rows[i] + 1] - begin));
  }
}

/* ---- footers: what they say of each column chunk, as plain numbers ---- */

/* In step with `parquet_loader/source/metadata.py`, which reads the same in Python. */
enum { FILE_NUMBERS = 12, GROUP_NUMBERS = 3, CHUNK_NUMBERS = 18 };
enum { ELSEWHERE = 1, ENCRYPTED = 2 };

typedef struct {
  Thrift t;
  const uint8_t *begin;
  int64_t *file, *groups, *chunks;
  int64_t group_capacity, chunk_capacity;
} Footer;

/* Passes over bytes; returns where they begin. */
static int64_t thrift_span(Footer *footer, int64_t *nbytes) {
  Thrift *t = &footer->t;
  uint64_t size = thrift_varint(t);
  int64_t at = t->next - footer->begin;
  if (!is_going(t)) return 0;
  thrift_skip_bytes(t, size);
  *nbytes = (int64_t)size;
  return at;
}

static int64_t thrift_list(Thrift *t, int kind) {
  int found;
  int64_t count = thrift_count(t, &found);
  if (count && found != kind) t->is_wrong = 1;
  return is_going(t) ? count : 0;
}

static void footer_statistics(Footer *footer, int64_t *chunk) {
  Thrift *t = &footer->t;
  int64_t field = 0;
  uint64_t seen = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    /* old maximum and minimum, then the new ones */
    int to = field == 1 ? 16 : field == 2 ? 14 : field == 5 ? 12 : field == 6 ? 10 : 0;
    if (to && kind == KIND_BINARY) chunk[to] = thrift_span(footer, &chunk[to + 1]);
    else if (field == 3 && kind == KIND_I64) chunk[9] = thrift_int(t);
    else thrift_skip(t, kind, 0);
  }
}

static void footer_column(Footer *footer, int64_t *chunk) {
  Thrift *t = &footer->t;
  int64_t field = 0;
  uint64_t seen = 0, found = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    int to = field == 5 ? 3 : field == 6 ? 4 : field == 7 ? 5 : field == 9 ? 6 : field == 11 ? 7 : 0;
    if (to && kind == KIND_I64) chunk[to] = thrift_int(t);
    else if (field == 1 && kind == KIND_I32) chunk[0] = thrift_int32(t);
    else if (field == 4 && kind == KIND_I32) chunk[1] = thrift_int32(t);
    else if (field == 2 && kind == KIND_LIST) {
      for (int64_t count = thrift_list(t, KIND_I32); count > 0 && is_going(t); count--) {
        int64_t encoding = thrift_int32(t);
        chunk[2] |= INT64_C(1) << (encoding >= 0 && encoding < 62 ? encoding : 62);
      }
    } else if (field == 12 && kind == KIND_STRUCT) footer_statistics(footer, chunk);
    else {
      thrift_skip(t, kind, 0);
      if (field != 3 || kind != KIND_LIST) continue;
    }
    found |= UINT64_C(1) << field;
  }
  const uint64_t required = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 9;
  if ((found & required) != required) t->is_wrong = 1;
}

static void footer_chunk(Footer *footer) {
  Thrift *t = &footer->t;
  int64_t field = 0, chunk[CHUNK_NUMBERS] = {-1, -1, 0, 0, 0, 0, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1, 0, -1};
  uint64_t seen = 0;
  int kind, is_described = 0;
  while (next_field(t, &field, &seen, &kind)) {
    if (field == 3 && kind == KIND_STRUCT) footer_column(footer, chunk), is_described = 1;
    else {
      if (field == 1 && kind == KIND_BINARY) chunk[8] |= ELSEWHERE;
      if ((field == 8 && kind == KIND_STRUCT) || (field == 9 && kind == KIND_BINARY)) chunk[8] |= ENCRYPTED;
      thrift_skip(t, kind, 0);
    }
  }
  if (!is_described && !(chunk[8] & ENCRYPTED)) t->is_wrong = 1;
  int64_t at = footer->file[2]++;
  if (at < footer->chunk_capacity) memcpy(footer->chunks + at * CHUNK_NUMBERS, chunk, sizeof chunk);
}

static void footer_group(Footer *footer) {
  Thrift *t = &footer->t;
  int64_t field = 0, group[GROUP_NUMBERS] = {0, 0, 0};
  uint64_t seen = 0, found = 0;
  int kind;
  while (next_field(t, &field, &seen, &kind)) {
    if (field == 1 && kind == KIND_LIST) {
      group[2] = thrift_list(t, KIND_STRUCT);
      for (int64_t count = group[2]; count > 0 && is_going(t); count--) footer_chunk(footer);
    } else if (field == 2 && kind == KIND_I64) group[1] = thrift_int(t);
    else if (field == 3 && kind == KIND_I64) group[0] = thrift_int(t);
    else {
      thrift_skip(t, kind, 0);
      continue;
    }
    found |= UINT64_C(1) << field;
  }
  if (found != (1 << 1 | 1 << 2 | 1 << 3)) t->is_wrong = 1;
  int64_t at = footer->file[1]++;
  if (at < footer->group_capacity) memcpy(footer->groups + at * GROUP_NUMBERS, group, sizeof group);
}

/* Reads a footer of `nbytes` bytes. `file`: rows; row groups; column chunks; first byte of the schema, and the byte
 * behind it; the same of the keys and values, 0 where there are none; whether it names an encryption; the same of the
 * orders of columns, and of the writer's name. `groups`, each: rows,
 * bytes, columns. `chunks`: see `footer_chunk`. What exceeds the capacities is counted only. ENDED: the footer is
 * longer than that; OTHER: it is none. */
EXPORT int footer_read(
    const uint8_t *bytes, int64_t nbytes, int64_t *file, int64_t *groups, int64_t group_capacity, int64_t *chunks,
    int64_t chunk_capacity) {
  Footer footer = {{bytes, bytes + nbytes, 0, 0}, bytes, file, groups, chunks, group_capacity, chunk_capacity};
  Thrift *t = &footer.t;
  int64_t field = 0;
  uint64_t seen = 0, found = 0;
  int kind;
  memset(file, 0, FILE_NUMBERS * sizeof *file);
  while (next_field(t, &field, &seen, &kind)) {
    int64_t at = t->next - bytes;
    if (field == 3 && kind == KIND_I64) file[0] = thrift_int(t);
    else if (field == 1 && kind == KIND_I32) thrift_int32(t);
    else if (field == 4 && kind == KIND_LIST) {
      for (int64_t count = thrift_list(t, KIND_STRUCT); count > 0 && is_going(t); count--) footer_group(&footer);
    } else if (field == 6 && kind == KIND_BINARY) {
      file[10] = thrift_span(&footer, &file[11]);
      file[11] += file[10];
    } else {
      thrift_skip(&footer.t, kind, 0);
      if (field == 8 && kind == KIND_STRUCT) file[7] = 1;
      int to = kind == KIND_LIST ? (field == 2 ? 3 : field == 5 ? 5 : field == 7 ? 8 : 0) : 0;
      if (!to) continue;
      file[to] = at, file[to + 1] = t->next - bytes;
    }
    found |= UINT64_C(1) << field;
  }
  const uint64_t required = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4;
  if (t->is_short) return ENDED;
  return t->is_wrong || (found & required) != required ? OTHER : OK;
}
