/* Memory for pages that are read and decompressed. */
#ifndef BUFFERS_H
#define BUFFERS_H

#include "kernels.h"

#include <stdint.h>

typedef struct {
  uint8_t *bytes;
  int64_t capacity;
} Buffer;

/* Makes space for `nbytes` bytes and SLACK behind them; the content of the buffer may be lost. */
int reserve(Buffer *buffer, int64_t nbytes);

void release(Buffer *buffer);

#endif
