/* The bytes of a file: in memory, or read from it. Include this header before all others. */
#ifndef FILE_BYTES_H
#define FILE_BYTES_H

#define _FILE_OFFSET_BITS 64  /* offsets beyond 2 GiB also on 32-bit machines */
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"

typedef struct {
  int file;
  const uint8_t *base;  /* the file's bytes in memory, or NULL */
  int64_t size;
} FileBytes;

static inline int fetch(const FileBytes *source, int64_t at, int64_t nbytes, uint8_t *out) {
  if (at < 0 || nbytes < 0 || at > source->size - nbytes) return ENDED;
  if (source->base) {
    memcpy(out, source->base + at, (size_t)nbytes);
    return OK;
  }
  while (nbytes > 0) {
    ssize_t got = pread(source->file, out, (size_t)nbytes, (off_t)at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SYSTEM;
    if (got == 0) return ENDED;
    out += got, at += got, nbytes -= got;
  }
  return OK;
}

#endif
