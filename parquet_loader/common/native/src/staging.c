#include "staging.h"

EXPORT int64_t staging_take(Staging *staging, int64_t nbytes) {
  int64_t taken = atomic_load_explicit(&staging->taken, memory_order_relaxed);
  do {
    if (nbytes > staging->capacity - taken) return -1;
  } while (!atomic_compare_exchange_weak_explicit(
      &staging->taken, &taken, taken + nbytes, memory_order_relaxed, memory_order_relaxed));
  return taken;
}

EXPORT int64_t staging_close(Staging *staging) {
  return atomic_exchange_explicit(&staging->taken, INT64_MAX, memory_order_relaxed);
}
