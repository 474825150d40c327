/* The staging buffer of a window's column, which Python and several reading threads fill. */
#ifndef STAGING_H
#define STAGING_H

#include <stdatomic.h>

#include "kernels.h"

/* Python makes it as an array of three numbers. `taken` never decreases; bytes before it belong to whoever took them. */
typedef struct {
  int64_t address, capacity;
  _Atomic int64_t taken;
} Staging;

/* Takes `nbytes`; returns how many bytes lie before them, or -1 if there are too few left. */
EXPORT int64_t staging_take(Staging *staging, int64_t nbytes);

/* Returns the bytes that were taken; nothing can be taken any more. */
EXPORT int64_t staging_close(Staging *staging);

#endif
