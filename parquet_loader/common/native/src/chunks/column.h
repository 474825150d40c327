/* A column chunk while it is read, and the chunks of a row group. */
#ifndef COLUMN_H
#define COLUMN_H

#include "../file_bytes.h"
#include "../listed_file.h"

#include "../buffers.h"
#include "../codecs.h"
#include "../conversions/casts.h"
#include "../conversions/decimals.h"
#include "../conversions/timestamps.h"
#include "../conversions/words.h"
#include "../pages/delta.h"
#include "../pages/levels.h"
#include "../pages/lists.h"
#include "../staging.h"

/* How the values of a page are stored. */
enum {
  IN_MEMORY,    /* plain, or views of DELTA_BYTE_ARRAY */
  IN_FILE,      /* plain, not read yet */
  CODED,        /* codes of a dictionary, or booleans */
  DIFFERENCES,  /* DELTA_BINARY_PACKED */
  STREAMS,      /* BYTE_STREAM_SPLIT */
  PREFIXED,     /* plain byte arrays: each value behind its length */
  MEASURED      /* DELTA_LENGTH_BYTE_ARRAY: all lengths first */
};
/* Physical types. BYTES have one width; TEXT are byte arrays that have to be UTF-8. */
enum { BYTES = 0, INTEGER = 1, FLOATING = 2, BOOLEAN = 3, BYTE_ARRAY = 4, TEXT = 5 };

typedef struct {
  int64_t at, end;      /* the next page in the file, and the end of the chunk */
  int64_t rows;         /* rows after the current page; levels if there are `lists` */
  int64_t width, kept;  /* bytes of a value in the file, and how many low bytes of it are decoded */
  int64_t out;          /* bytes of a delivered value: `kept`, unless values are converted */
  int64_t conversion;   /* see `conversions.h` */
  const Vocabulary *vocabulary;  /* WORD_CODES */
  int codec, physical;
  int optional;         /* the definition level of a value */
  int64_t list_values;  /* values per row if rows are lists of one length, else 0 */
  ListLevels *lists;    /* levels if rows are lists of any length, else NULL */
  int64_t position;     /* index in its list of the first value after the current page */
  int64_t encodings;    /* one bit for each encoding that the footer names */
  int always_compressed;  /* pages of version 2 are compressed whatever their headers say: old parquet-cpp, PARQUET-10353 */
  int had_pages;        /* a data page was read */
  int in_slots;         /* rows have slots, and are too short to be read from the file one by one */
  int64_t left;         /* rows of the current page that were not read yet; levels if there are `lists` */
  int64_t values_left;  /* values of the current page that were not read yet: fewer than `left` if some are null */
  Levels levels;        /* definition levels, if there are nulls in the page */
  int kind;             /* how the page stores its values */
  int64_t place;        /* IN_FILE: offset of the next value in the file */
  const uint8_t *next, *stop;
  Buffer page, dictionary;
  int64_t entries;      /* of the dictionary; -1: no dictionary was read */
  int bits;             /* CODED: bits per code; then the current run: */
  int64_t run_left, run_done;
  int is_literal;
  uint32_t repeated;
  const uint8_t *run;
  const uint8_t *words;  /* CODED: `entries` decoded values of `out` bytes, by code */
  Delta delta;          /* DIFFERENCES, MEASURED */
  int64_t stride;       /* STREAMS: bytes from one byte of a value to its next one */
  int64_t most_page_bytes;  /* limit for a decompressed page, by the footer */
  Buffer entry_views;   /* byte arrays: views of the dictionary's entries, or their codes */
  int64_t entry_bytes;  /* byte arrays: bytes of all of the dictionary's entries */
  Buffer views, joined; /* DELTA_BYTE_ARRAY: views of the page's values, and the values themselves */
  int checks_text;      /* each value of the page has to be checked, because some byte is not ASCII */
  int is_viewed;        /* views of the page were delivered and are not released yet */
  Staging *staging;     /* byte arrays: where pages go whose rows all lie before the last `rows_behind`; or NULL */
  int64_t rows_behind;
  int is_staged;        /* the values of the page are in `staging` */
} Column;

/* Whether values are delivered as plain pages store them. */
static inline int is_as_stored(const Column *column) {
  return column->kept == column->width && column->conversion == NO_CONVERSION;
}

static inline int is_byte_array(const Column *column) { return column->physical >= BYTE_ARRAY; }

/* Converts `count` decoded values of `kept` bytes to `out`. */
static inline int converted(const Column *column, const uint8_t *in, int64_t count, uint8_t *out) {
  const int is_big_endian = column->physical == BYTES;
  if (column->conversion >= CASTS) return cast_numbers(in, count, column->conversion, out);
  if (column->conversion == INT96_TIMESTAMPS) return convert_int96(in, count, out);
  if (column->conversion == WORD_CODES) return words_to_codes(column->vocabulary, in, count, column->out, out);
  return convert_decimals(in, column->kept, is_big_endian, count, column->conversion, out, column->out);
}

/* Column chunks of one row group, open for a forward read. */
typedef struct {
  FileBytes source;
  ListedFile listed;    /* the file that `source` reads; its path is NULL if the bytes are in memory */
  Buffer raw;           /* a compressed page */
  Decompressors decompressors;
  Buffer page, dictionary;  /* of a column that was read to its end; the next column reuses them while they are cached */
  Buffer scratch;       /* decoded values, some of which are left out */
  Buffer pieces;        /* the `Piece`s of the rows that are delivered */
  Shelf viewed, spare;  /* pages of byte arrays: those with views in use, and those to reuse */
  int64_t count;
  Column columns[];
} RowGroup;

#endif
