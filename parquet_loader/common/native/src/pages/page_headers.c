/* Page headers: read, and their claims checked.
 *
 * `pages_check` serves the chunks that Arrow decodes: it walks over their page headers before Arrow allocates the sizes
 * that they claim. `pages_list` serves readers of single pages.
 */
#include "page_headers.h"

#include <stdlib.h>

#include "../thrift.h"

#define LONGEST_ARROW_HEADER (1 << 24)  /* Arrow's own limit */
#define BEHIND_CHUNK 100  /* bytes that Arrow reads behind a chunk: see `page_headers.py` */

/* A bit for each field that a reader of the format insists on; bit 0: the struct is there. */
static const uint32_t REQUIRED[4] = {0xE, 0x1E, 0x6, 0x7E};

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
  FileBytes source = {file, base, size};
  for (int64_t i = 0; i < count; i++, lines += 6) {
    int64_t at = lines[0], end = lines[1] < size ? lines[1] : size, left = lines[2];
    while (left > 0 && at >= 0 && at < end) {  /* Arrow refuses places before the file */
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

/* Lists the pages of a column chunk from byte `at` on, up to byte `end` or until data pages hold `values` values. Each of
 * `capacity` lines of 6 numbers gets: first byte of the header, its bytes, the kind of page, bytes behind the header,
 * values, and rows of a page of version 2, else -1. `count` gets the number of pages, also of those beyond the capacity.
 * OTHER: there is no header where one is expected, or it claims more than there is. */
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
