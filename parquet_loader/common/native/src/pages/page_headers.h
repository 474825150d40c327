/* Page headers. */
#ifndef PAGE_HEADERS_H
#define PAGE_HEADERS_H

#include "../file_bytes.h"

enum { DATA_PAGE = 0, DICTIONARY_PAGE = 2, DATA_PAGE_V2 = 3 };
enum { V1 = 1, DICTIONARY = 2, V2 = 3 };  /* the structs within a page header; 0 is the header itself */
enum { KIND = 1, PLAIN_BYTES = 2, PAGE_BYTES = 3 };  /* fields of the header */
enum { VALUES = 1, ENCODING = 2, LEVELS_ENCODING = 3, REPETITIONS_ENCODING = 4 };  /* of V1; DICTIONARY has the first two */
enum { V2_NULLS = 2, V2_ROWS = 3, V2_ENCODING = 4, V2_LEVELS_BYTES = 5, V2_REPETITION_BYTES = 6, V2_IS_COMPRESSED = 7 };

typedef struct {
  int64_t fields[4][8];
  uint32_t seen[4];
  int is_compressed;
  int64_t nbytes;
} Header;

/* Reads the page header at offset `at` of a chunk that ends at `end`. OTHER: not a page header, or longer than `most`. */
int read_header(const FileBytes *source, int64_t at, int64_t end, int64_t most, Header *header);

#endif
