/* Thrift's compact protocol. */
#ifndef THRIFT_H
#define THRIFT_H

#include <stdint.h>

typedef struct {
  const uint8_t *next, *stop;
  int is_short, is_wrong;
} Thrift;

enum { KIND_I16 = 4, KIND_I32 = 5, KIND_I64 = 6, KIND_BINARY = 8, KIND_LIST = 9, KIND_STRUCT = 12 };
enum { MOST_NESTED = 32 };  /* depth of structs and lists */

static inline uint8_t thrift_byte(Thrift *t) {
  if (t->next >= t->stop) {
    t->is_short = 1;
    return 0;
  }
  return *t->next++;
}

static inline uint64_t thrift_varint(Thrift *t) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    uint8_t byte = thrift_byte(t);
    value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  t->is_wrong = 1;
  return 0;
}

static inline int64_t thrift_int(Thrift *t) {
  uint64_t value = thrift_varint(t);
  return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static inline int is_going(const Thrift *t) { return !t->is_short && !t->is_wrong; }

/* Reads the header of the next field of a struct; returns 0 after the last one. */
static inline int next_field(Thrift *t, int64_t *field, uint64_t *seen, int *kind) {
  uint8_t head = thrift_byte(t);
  if (head == 0 || !is_going(t)) return 0;
  *field = head >> 4 ? *field + (head >> 4) : thrift_int(t);
  *kind = head & 0x0F;
  if (*field < INT16_MIN || *field > INT16_MAX) t->is_wrong = 1;
  if (*field >= 0 && *field < 64) {  /* refuses repeated fields: readers differ in which one they use */
    if (*seen >> *field & 1) t->is_wrong = 1;
    *seen |= UINT64_C(1) << *field;
  }
  return is_going(t);
}

static inline int64_t thrift_int32(Thrift *t) {
  int64_t value = thrift_int(t);
  if (value < INT32_MIN || value > INT32_MAX) t->is_wrong = 1;
  return value;
}

static inline void thrift_skip_bytes(Thrift *t, uint64_t nbytes) {
  if (nbytes > (uint64_t)(t->stop - t->next)) t->is_short = 1;
  else t->next += nbytes;
}

static inline int64_t thrift_count(Thrift *t, int *kind) {
  uint8_t head = thrift_byte(t);
  uint64_t count = head >> 4 < 15 ? head >> 4 : thrift_varint(t);
  *kind = head & 0x0F;
  if (count > (uint64_t)(t->stop - t->next)) t->is_short = 1;
  return is_going(t) ? (int64_t)count : 0;
}

/* Skips a value. */
static inline void thrift_skip(Thrift *t, int kind, int depth) {
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
        for (int i = 0; i < each; i++)  /* a bool takes one byte in a list, and none as a field */
          thrift_skip(t, kinds[i] == 1 || kinds[i] == 2 ? 3 : kinds[i], depth + 1);
      return;
    case 12:
      if (depth >= MOST_NESTED) break;
      while (next_field(t, &field, &seen, &inner)) thrift_skip(t, inner, depth + 1);
      return;
  }
  t->is_wrong = 1;
}

static inline int64_t thrift_list(Thrift *t, int kind) {
  int found;
  int64_t count = thrift_count(t, &found);
  if (count && found != kind) t->is_wrong = 1;
  return is_going(t) ? count : 0;
}

#endif
