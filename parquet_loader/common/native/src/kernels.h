/* What all kernels share. */
#ifndef KERNELS_H
#define KERNELS_H

#define EXPORT __attribute__((visibility("default")))  /* what Python calls */
#define INLINE static inline __attribute__((always_inline))

/* The same code for several generations of processors; the system's loader chooses. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(ONE_TARGET)
#define FOR_EACH_TARGET __attribute__((target_clones("arch=skylake-avx512", "avx512f", "avx2", "default")))
#else
#define FOR_EACH_TARGET
#endif

enum { OK = 0, NO_MEMORY = 1, ENDED = 2, SYSTEM = 3, OTHER = 4, FULL = 5 };  /* OTHER: leave it to Arrow */
#define SLACK 128  /* bytes behind a buffer of ours that may be read, or written, in vain */

/* Rows of at most SHORT_ROW bytes are copied by steps: up to SHORT_STEP bytes behind them are read and written in vain. */
#define SHORT_ROW 96
#define SHORT_STEP 16
#define copy_short(in, nbytes, out) \
  for (int64_t at_ = 0; at_ < (nbytes); at_ += SHORT_STEP) memcpy((out) + at_, (in) + at_, SHORT_STEP)

/* A function for each width that numbers and views have, so that the compiler knows the width. */
#define FOR_WIDTH(width, does) \
  switch (width) { \
    case 1: does(1); break; \
    case 2: does(2); break; \
    case 4: does(4); break; \
    case 8: does(8); break; \
    case 16: does(16); break; \
    default: does(width); \
  }

#endif
