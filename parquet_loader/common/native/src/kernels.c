#include "kernels.h"

/* Of the source that this was compiled from. */
EXPORT const char *kernels_digest(void) { return DIGEST; }
