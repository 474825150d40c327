/* Reads page headers and checks the sizes that they state.
 *
 * `pages_check` is for chunks that Arrow decodes: it checks their page headers before Arrow allocates the stated sizes.
 * `pages_list` is for readers of single pages.
 */
#include "page_headers.h"

#include <stdlib.h>

#include "../thrift.h"

#define LONGEST_ARROW_HEADER (1 << 24)  /* Arrow's own limit */
#define BEHIND_CHUNK 100  /* bytes that Arrow reads behind a chunk: see `page_headers.py` */

/* One bit for each required field of a struct; bit 0: the struct is present. */
static const uint32_t REQUIRED[4] = {0xE, 0x1E, 0x6, 0x7E};

/* Reads a struct of a page header: `part`. As in Thrift's own code, a field of an unexpected type is skipped like an unknown
 * field. */
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

int read_header(const FileBytes *source, int64_t at, int64_t end, int64_t most, Header *header) {
  uint8_t first[128], *more = NULL;
  int code = OTHER;
  for (int64_t nbytes = sizeof first; nbytes <= most; nbytes *= 8) {
    int64_t there = end - at < nbytes ? end - at : nbytes;
    if (nbytes > (int64_t)sizeof first) {
      free(more);
      if (!(more = malloc((size_t)nbytes))) return NO_MEMORY;
    }
    uint8_t *bytes = more ? more : first;
    if ((code = fetch(source, at, there, bytes)) != OK) break;
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

enum { NO_HEADER = 1, LONGER_THAN_CHUNK, LARGER_THAN_CODEC, LARGER_THAN_FOOTER, TOO_MANY_ENTRIES, TOO_MANY_VALUES };

/* Returns which number of a page header its chunk contradicts, or 0; `said` gets this number and the limit. `line`: see
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

/* Checks the page headers of column chunks, as far as Arrow would read them. Each of `count` lines has 6 numbers: begin and
 * end of the chunk in the file, values, smallest size of a dictionary's entry, bytes that the codec produces at most from
 * one byte (1: not compressed, 0: not known), and the limit for a decompressed page. OTHER: a header contradicts its chunk;
 * `report` gets the index of the line, what is wrong, the header's offset, the number that it states, and the limit. */
EXPORT int pages_check(int file, const uint8_t *base, int64_t size, const int64_t *lines, int64_t count, int64_t *report) {
  FileBytes source = {file, base, size};
  for (int64_t i = 0; i < count; i++, lines += 6) {
    int64_t at = lines[0], end = lines[1] < size ? lines[1] : size, left = lines[2];
    while (left > 0 && at >= 0 && at < end) {  /* Arrow refuses negative offsets */
      Header header;
      int64_t behind = end + BEHIND_CHUNK < size ? end + BEHIND_CHUNK : size;
      int code = read_header(&source, at, behind, LONGEST_ARROW_HEADER, &header);
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

/* Lists the pages of a column chunk from offset `at` up to `end`, or until data pages hold `values` values. Each of `capacity`
 * lines gets 6 numbers: offset of the header, its bytes, kind of the page, bytes after the header, values, and the rows of a
 * page of version 2, else -1. `count` gets the number of all pages, also beyond the capacity. OTHER: a header is missing, or
 * states more than the chunk has. */
EXPORT int pages_list(
    int file, const uint8_t *base, int64_t size, int64_t at, int64_t end, int64_t values, int64_t *lines,
    int64_t capacity, int64_t *count) {
  FileBytes source = {file, base, size};
  int64_t behind = end < size - BEHIND_CHUNK ? end + BEHIND_CHUNK : size;
  for (*count = 0; values > 0 && at >= 0 && at < end && at < size; ++*count) {
    Header header;
    int code = read_header(&source, at, behind, LONGEST_ARROW_HEADER, &header);
    if (code) return code;
    int64_t kind = header.fields[0][KIND], page_bytes = header.fields[0][PAGE_BYTES], found = 0;
    if (kind == DATA_PAGE || kind == DATA_PAGE_V2) found = header.fields[kind == DATA_PAGE ? V1 : V2][VALUES];
    if (page_bytes < 0 || page_bytes > behind - at - header.nbytes || found < 0 || found > values) return OTHER;
    if (*count < capacity) {
      int64_t *line = lines + *count * 6;
      line[0] = at, line[1] = header.nbytes, line[2] = kind, line[3] = page_bytes, line[4] = found;
      line[5] = kind == DATA_PAGE_V2 ? header.fields[V2][V2_ROWS] : -1;
    }
    at += header.nbytes + page_bytes, values -= found;
  }
  return OK;
}
