#include "kernels.h"

/* The digest of the source from which this library was compiled. */
EXPORT const char *kernels_digest(void) { return DIGEST; }
