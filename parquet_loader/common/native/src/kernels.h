/* Macros, result codes and short copies that all kernels share. */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))  /* Python calls it */
#define INLINE static inline __attribute__((always_inline))
#define ADDRESS(type, number) ((type *)(uintptr_t)(number))  /* of memory that Python passes as a number */

/* The same code for several generations of processors; the system's loader chooses. Never by "arch=": gcc then compares the
 * processor's model, and virtual machines with the model of a Skylake server may lack AVX-512. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(ONE_TARGET)
#define FOR_EACH_TARGET __attribute__((target_clones("avx512f", "avx2", "default")))
#define HAS_TARGETS 1
#else
#define FOR_EACH_TARGET
#endif
#ifdef HAS_TARGETS
#define IN_AVX2 __attribute__((target("avx2")))  /* for functions with vectors, if the processor has them */
#endif

/* Result codes. ENDED: the file is too short; SYSTEM: see errno; OTHER: not supported or damaged, leave it to Arrow. */
enum { OK = 0, NO_MEMORY = 1, ENDED = 2, SYSTEM = 3, OTHER = 4, FULL = 5 };
#define SLACK 128  /* bytes behind each of our buffers that may be read or overwritten; more than SHORT_ROW */

/* Copies a row of at most SHORT_ROW bytes; that many bytes must be readable and writable. The lengths of rows have no
 * pattern, and a mispredicted branch takes longer than a copy: so there are few branches. */
#define SHORT_ROW 96
INLINE void copy_short(const uint8_t *in, int64_t nbytes, uint8_t *out) {
  memcpy(out, in, 16);
  memcpy(out + 16, in + 16, 16);
  if (nbytes <= 32) return;
  memcpy(out + 32, in + 32, 32);
  if (nbytes > 64) memcpy(out + 64, in + 64, 32);
}

/* Runs `does` with a constant width, so that the compiler knows it, for the widths of numbers and views. */
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
