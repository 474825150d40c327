#include "next_page.h"

#include "../pages/byte_arrays.h"
#include "../pages/encodings.h"
#include "../pages/page_headers.h"
#include "../pages/runs.h"

#define LONGEST_HEADER (1 << 16)  /* bytes of a page header that is accepted */
#define MOST_DELTA_BYTES (1 << 23)  /* limit for the values of a DELTA_BYTE_ARRAY page and their views */
#define LARGE_PAGE (1 << 16)  /* from this many bytes, values of an uncompressed page of lists are read to their places */
#define LEAST_STAGED (1 << 12)  /* bytes of a page of byte arrays that is staged: SLACK behind it then takes little space */
#define FIRST_BYTES (1 << 12)  /* of a large page of lists that are read first: most levels are among them */

/* Before the next page of a column of byte arrays: keeps the current page if views of it were delivered, and takes a
 * spare buffer. */
static int keep_viewed_page(RowGroup *group, Column *column) {
  int code = OK;
  if (column->is_viewed) code = shelve(&group->viewed, &column->page) || shelve(&group->viewed, &column->joined) ? NO_MEMORY : OK;
  column->is_viewed = 0;
  column->is_staged = 0;
  if (!column->page.bytes && group->spare.count) column->page = group->spare.buffers[--group->spare.count];
  return code;
}

/* Reads and decompresses `nbytes` of the file to exactly `out_bytes` at `out`. */
static int unpacked(RowGroup *group, int codec, int64_t at, int64_t nbytes, uint8_t *out, int64_t out_bytes) {
  int code;
  if (codec == PLAIN_CODEC) return nbytes == out_bytes ? fetch(&group->source, at, nbytes, out) : OTHER;
  if (nbytes == 0) return out_bytes == 0 ? OK : OTHER;
  const uint8_t *in;
  if (group->source.base) {
    if (at < 0 || nbytes < 0 || at > group->source.size - nbytes) return ENDED;
    in = group->source.base + at;
  } else {
    if ((code = reserve(&group->raw, nbytes)) || (code = fetch(&group->source, at, nbytes, group->raw.bytes))) return code;
    in = group->raw.bytes;
  }
  return decompress(&group->decompressors, codec, in, nbytes, out, out_bytes);
}

static int read_dictionary(RowGroup *group, Column *column, const Header *header) {
  int64_t encoding = header->fields[DICTIONARY][ENCODING], values = header->fields[DICTIONARY][VALUES];
  int64_t nbytes = values * column->width, page_bytes = header->fields[0][PAGE_BYTES];
  int is_array = is_byte_array(column), code;
  if (column->physical == BOOLEAN) return OTHER;
  if (!header->seen[DICTIONARY] || column->entries >= 0 || column->had_pages || values < 0) return OTHER;
  if (is_array) {
    nbytes = header->fields[0][PLAIN_BYTES];
    if (nbytes > column->most_page_bytes || values > nbytes / 4) return OTHER;
  }
  if ((encoding != PLAIN && encoding != PLAIN_DICTIONARY) || header->fields[0][PLAIN_BYTES] != nbytes) return OTHER;
  if (nbytes > page_bytes * most_expansion(column->codec)) return OTHER;
  int64_t most = column->out > column->width ? column->out : column->width;
  if ((code = reserve(&column->dictionary, is_array ? nbytes : values * most))) return code;
  const int are_converted = column->conversion && !is_array;
  Buffer *into = are_converted ? &column->page : &column->dictionary;  /* `page` is free: no data page was read */
  if (are_converted && (code = reserve(into, nbytes))) return code;
  int64_t at = column->at + header->nbytes;
  if ((code = unpacked(group, column->codec, at, page_bytes, into->bytes, nbytes))) return code;
  if (column->kept < column->width) narrow(into->bytes, column->width, values, column->kept, into->bytes);
  if (are_converted) {
    if ((code = converted(column, into->bytes, values, column->dictionary.bytes))) return code;
  } else if (is_array) {
    const uint8_t *entries = into->bytes;
    if ((code = reserve(&column->entry_views, values * (int64_t)sizeof(View)))) return code;
    View *views = (View *)column->entry_views.bytes;
    const int is_text = column->physical == TEXT && !is_all_ascii(entries, nbytes);
    if ((code = plain_views(&entries, entries + nbytes, values, is_text, views))) return code;
    if (entries != into->bytes + nbytes) return OTHER;
    uint8_t *bytes = column->entry_views.bytes;
    if (!column->vocabulary) number_views(values, views);
    else if ((code = converted(column, bytes, values, bytes))) return code;
  }
  column->entries = values;
  column->entry_bytes = is_array ? nbytes - 4 * values : 0;
  return OK;
}

/* Begins a page of byte arrays; values of DELTA_BYTE_ARRAY are decoded to another buffer. */
static int begin_views(Column *column, int64_t encoding) {
  int64_t values = column->values_left, nbytes = values * (int64_t)sizeof(View), total;
  int code = OK;
  if (encoding != DELTA_BYTE_ARRAY) {
    column->kind = encoding == PLAIN ? PREFIXED : MEASURED;
    if (column->kind == MEASURED)
      code = delta_begin_within(&column->delta, column->next, column->stop, values, sizeof(int32_t), &column->next);
    if (code == OK && column->physical == TEXT)
      column->checks_text = !is_all_ascii(column->next, column->stop - column->next);
    return code;
  }
  if (values > MOST_DELTA_BYTES / (int64_t)sizeof(View)) return OTHER;
  if ((code = reserve(&column->views, nbytes))) return code;
  View *views = (View *)column->views.bytes;
  if ((total = delta_views(column->next, column->stop, values, MOST_DELTA_BYTES - nbytes, views)) < 0) return OTHER;
  column->kind = IN_MEMORY;
  column->next = column->views.bytes;
  if ((code = reserve(&column->joined, total))) return code;
  return join_delta_views(values, column->physical == TEXT, column->joined.bytes, views);
}

/* Begins the values of a page, which take exactly the bytes from `next` to `stop`. */
static int begin_values(Column *column, int64_t encoding) {
  static const uint8_t booleans[] = {0, 1};
  int64_t values = column->values_left, nbytes = column->stop - column->next;
  int is_delta = encoding == DELTA_LENGTH_BYTE_ARRAY || encoding == DELTA_BYTE_ARRAY;
  if (is_byte_array(column) && (encoding == PLAIN || is_delta)) return begin_views(column, encoding);
  if (encoding == PLAIN && column->physical != BOOLEAN) {
    column->kind = IN_MEMORY;
    return nbytes == values * column->width ? OK : OTHER;
  }
  column->run_left = 0;
  switch (encoding) {
    case PLAIN:  /* a run of packed bits */
      column->kind = CODED;
      column->bits = 1, column->is_literal = 1, column->run = column->next;
      column->run_left = values, column->run_done = 0;
      column->words = booleans, column->entries = 2;
      column->next = column->stop;
      return nbytes == (values + 7) / 8 ? OK : OTHER;
    case RLE: {
      uint32_t length;
      if (column->physical != BOOLEAN || nbytes < 4) return OTHER;
      memcpy(&length, column->next, 4);
      column->kind = CODED;
      column->bits = 1, column->words = booleans, column->entries = 2;
      column->next += 4;
      if (length != (uint64_t)(nbytes - 4)) return OTHER;
      return runs_add_up(column->next, column->stop, values, 1) ? OK : OTHER;
    }
    case PLAIN_DICTIONARY: case RLE_DICTIONARY:
      column->kind = CODED;
      column->words = is_byte_array(column) ? column->entry_views.bytes : column->dictionary.bytes;
      if (column->physical == BOOLEAN || column->entries < 0 || nbytes == 0) return OTHER;
      column->bits = *column->next++;
      return column->bits <= 32 && runs_add_up(column->next, column->stop, values, column->bits) ? OK : OTHER;
    case DELTA_BINARY_PACKED:
      column->kind = DIFFERENCES;
      if (column->physical != INTEGER) return OTHER;
      return delta_begin(&column->delta, column->next, column->stop, values, column->width);
    case BYTE_STREAM_SPLIT:
      column->kind = STREAMS;
      column->stride = values;
      if (column->physical == BOOLEAN || is_byte_array(column)) return OTHER;
      return nbytes == values * column->width ? OK : OTHER;
  }
  return OTHER;
}

/* Checks the definition levels of a page and counts its values. */
static int check_definitions(Column *column, const uint8_t *next, const uint8_t *stop) {
  if (column->list_values) return all_levels(next, stop, column->left, column->optional) ? OK : OTHER;
  column->levels = (Levels){.next = next, .stop = stop};
  column->values_left = count_defined(next, stop, column->left, column->optional);
  return column->values_left < 0 ? OTHER : OK;
}

/* Checks by the repetition levels of a page that every list has `list_values` values. */
static int check_lists(Column *column, const uint8_t *next, const uint8_t *stop) {
  if (!lists_add_up(next, stop, column->left, column->position, column->list_values)) return OTHER;
  column->position = (column->position + column->left) % column->list_values;
  return OK;
}

/* Fetches the levels at the start of a large uncompressed page of lists of version 1; `nbytes` gets their bytes, with their
 * lengths. */
static int fetch_levels(RowGroup *group, Column *column, int64_t at, int64_t page_bytes, int64_t *nbytes) {
  int64_t there = 0, end = 0;
  for (int step = 0; step < 3; step++) {  /* the first length, the second one, the end */
    uint32_t length;
    const int64_t wanted = step < 2 ? end + (int64_t)sizeof length : end;
    if (wanted > page_bytes) return OTHER;
    if (wanted > there) {
      const int64_t until = wanted > FIRST_BYTES ? wanted : FIRST_BYTES;
      int code = fetch(&group->source, at + there, until - there, column->page.bytes + there);
      if (code) return code;
      there = until;
    }
    if (step < 2) {
      memcpy(&length, column->page.bytes + end, sizeof length);
      end = wanted + (int64_t)length;
    }
  }
  *nbytes = end;
  return OK;
}

/* Begins the levels of a page of version 1 of `rows` rows or levels, which are the first of the bytes from `next` to `stop`. */
static int begin_first_levels(Column *column, int64_t rows) {
  const int has_lists = column->list_values || column->lists;
  const uint8_t *repeated = NULL, *repeated_end = NULL;
  for (int definitions = has_lists ? 0 : 1; definitions < (column->optional ? 2 : 1); definitions++) {
    uint32_t length;
    if (column->stop - column->next < 4) return OTHER;
    memcpy(&length, column->next, 4);
    column->next += 4;
    if (length > (uint64_t)(column->stop - column->next)) return OTHER;
    const uint8_t *stop = column->next + length;
    if (column->lists && !definitions) {
      repeated = column->next, repeated_end = stop;
    } else if (column->lists) {
      column->values_left = lists_begin_page(column->lists, repeated, repeated_end, column->next, stop, rows, -1);
      if (column->values_left < 0) return OTHER;
    } else if ((definitions ? check_definitions : check_lists)(column, column->next, stop)) {
      return OTHER;
    }
    column->next = stop;
  }
  return OK;
}

/* Returns memory of the staging buffer for a page of `nbytes` of byte arrays, whose values then need not be copied; NULL if
 * its rows have to outlive the buffer, or if there is no space. */
static uint8_t *staged_page(Column *column, int64_t encoding, int64_t nbytes) {
  if (!column->staging || column->rows < column->rows_behind || nbytes < LEAST_STAGED) return NULL;
  if (encoding != PLAIN && encoding != DELTA_LENGTH_BYTE_ARRAY) return NULL;
  const int64_t before = staging_take(column->staging, nbytes + SLACK);
  column->is_staged = before >= 0;
  return column->is_staged ? ADDRESS(uint8_t, column->staging->address + before) : NULL;
}

static int begin_page(RowGroup *group, Column *column, const Header *header) {
  int is_second = header->fields[0][KIND] == DATA_PAGE_V2, part = is_second ? V2 : V1, code;
  const int64_t *fields = header->fields[part];
  int64_t at = column->at + header->nbytes, rows = fields[VALUES], levels = 0, repetitions = 0;
  int64_t page_bytes = header->fields[0][PAGE_BYTES], plain_bytes = header->fields[0][PLAIN_BYTES];
  int64_t encoding = fields[is_second ? V2_ENCODING : ENCODING];
  int64_t coded = INT64_C(1) << RLE_DICTIONARY | INT64_C(1) << PLAIN_DICTIONARY;
  const int has_lists = column->list_values || column->lists;
  int codec = !is_second || header->is_compressed || column->always_compressed ? column->codec : PLAIN_CODEC;
  if (!header->seen[part] || rows <= 0 || rows > column->rows || encoding < 0 || encoding > 61) return OTHER;
  if (!(column->encodings & (INT64_C(1) << encoding & coded ? coded : INT64_C(1) << encoding))) return OTHER;
  int64_t most_bytes = is_byte_array(column) ? column->most_page_bytes : rows * (column->width + 8) + LONGEST_HEADER;
  if (plain_bytes > most_bytes) return OTHER;
  if (plain_bytes > page_bytes * most_expansion(codec)) return OTHER;
  if (is_second) {
    levels = fields[V2_LEVELS_BYTES];
    repetitions = fields[V2_REPETITION_BYTES];
    if (!column->lists && fields[V2_ROWS] * (column->list_values ? column->list_values : 1) != rows) return OTHER;
    if (column->lists && fields[V2_ROWS] < 0) return OTHER;
    if (levels < 0 || repetitions < 0) return OTHER;
    if (!levels != !column->optional || !repetitions != !has_lists) return OTHER;
    levels += repetitions;
    if (levels > page_bytes || levels > plain_bytes) return OTHER;
  } else {
    if (column->optional && fields[LEVELS_ENCODING] != RLE) return OTHER;
    if (has_lists && fields[REPETITIONS_ENCODING] != RLE) return OTHER;
  }
  column->had_pages = 1;
  column->rows -= rows;
  column->left = column->values_left = rows;
  /* The last page ends with the chunk. */
  if (column->rows == 0 && at + page_bytes != column->end) return OTHER;
  if (is_byte_array(column) && (code = keep_viewed_page(group, column))) return code;
  if (levels) {
    if ((code = reserve(&column->page, plain_bytes))) return code;
    if ((code = fetch(&group->source, at, levels, column->page.bytes))) return code;
  }
  int64_t nbytes = plain_bytes - levels;
  int has_levels = !is_second && (column->optional || has_lists);
  const uint8_t *end = column->page.bytes + levels;
  if (levels && column->lists) {
    const uint8_t *definitions = column->page.bytes + repetitions;
    column->values_left =
        lists_begin_page(column->lists, column->page.bytes, definitions, definitions, end, rows, fields[V2_ROWS]);
  } else {
    if (repetitions && check_lists(column, column->page.bytes, column->page.bytes + repetitions)) return OTHER;
    if (levels > repetitions && check_definitions(column, column->page.bytes + repetitions, end)) return OTHER;
  }
  if (column->values_left < 0 || (is_second && column->values_left != rows - fields[V2_NULLS])) return OTHER;
  const int can_stay = codec == PLAIN_CODEC && encoding == PLAIN && column->physical < BOOLEAN && is_as_stored(column) &&
                       !group->source.base;
  const int is_large = page_bytes >= LARGE_PAGE;
  if (has_levels && column->lists && can_stay && is_large && page_bytes == plain_bytes) {
    if ((code = reserve(&column->page, plain_bytes))) return code;
    if ((code = fetch_levels(group, column, at, page_bytes, &levels))) return code;
    column->next = column->page.bytes, column->stop = column->next + levels;
    if ((code = begin_first_levels(column, rows))) return code;
    nbytes = plain_bytes - levels, has_levels = 0;
  }
  const int stays = column->lists ? is_large && lists_are_values(column->lists) : !column->in_slots;
  if (can_stay && !has_levels && column->values_left == rows && stays) {
    if (page_bytes != plain_bytes || nbytes != rows * column->width) return OTHER;
    column->kind = IN_FILE;
    column->place = at + levels;
    return OK;
  }
  uint8_t *values = staged_page(column, encoding, nbytes);
  if (!values) {
    if ((code = reserve(&column->page, plain_bytes))) return code;
    values = column->page.bytes + levels;
  }
  if ((code = unpacked(group, codec, at + levels, page_bytes - levels, values, nbytes))) return code;
  column->next = values;
  column->stop = column->next + nbytes;
  if (has_levels && (code = begin_first_levels(column, rows))) return code;
  return begin_values(column, encoding);
}

int next_page(RowGroup *group, Column *column) {
  Header header;
  int code;
  if (column->at < 0 || column->at >= column->end) return ENDED;
  if ((code = read_header(&group->source, column->at, column->end, LONGEST_HEADER, &header))) return code;
  int64_t page_bytes = header.fields[0][PAGE_BYTES], kind = header.fields[0][KIND];
  int64_t room = column->end - column->at - header.nbytes;
  if (page_bytes < 0 || page_bytes > room || header.fields[0][PLAIN_BYTES] < 0) return OTHER;
  if (kind == DICTIONARY_PAGE) code = read_dictionary(group, column, &header);
  else if (kind == DATA_PAGE || kind == DATA_PAGE_V2) code = begin_page(group, column, &header);
  else code = OTHER;
  column->at += header.nbytes + page_bytes;
  return code;
}
