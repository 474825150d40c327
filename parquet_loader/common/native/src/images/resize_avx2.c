/* The loops of `resize.c` for processors with AVX2: GCC is slow to make integers of its own vectors of bytes. */
#include "../kernels.h"

#ifdef HAS_TARGETS
#pragma GCC target("avx2")
#include "resize_strips.h"

void resize_with_avx2(const struct job *job, int32_t slots) { resize_strips(job, slots); }
#endif
