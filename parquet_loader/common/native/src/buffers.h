/* Memory for pages that are read and decompressed. */
#ifndef BUFFERS_H
#define BUFFERS_H

#include "kernels.h"

#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t *bytes;
  int64_t capacity;
} Buffer;

/* Makes space for `nbytes` bytes and SLACK behind them; the content of the buffer may be lost. */
int reserve(Buffer *buffer, int64_t nbytes);

void release(Buffer *buffer);

/* Moves a buffer to an owner that has none. */
static inline void hand_over(Buffer *from, Buffer *to) {
  if (to->bytes || !from->bytes) return;
  *to = *from;
  *from = (Buffer){NULL, 0};
}

/* A stack of buffers. */
typedef struct {
  Buffer *buffers;
  int64_t count, capacity;
} Shelf;

/* Moves a buffer, if there is one, to a shelf. */
int shelve(Shelf *shelf, Buffer *buffer);

void release_shelf(Shelf *shelf);

#endif
