/* Column chunks that Python opens, reads and closes. */
#ifndef COLUMN_CHUNKS_H
#define COLUMN_CHUNKS_H

#include "../kernels.h"
#include "../pages/lists.h"
#include "../staging.h"

/* Each is described where it is defined. */
EXPORT void *chunks_open(
    const char *path, int64_t size, int64_t mtime_ns, const uint8_t *base, const int64_t *lines, int64_t count,
    int *problem);
EXPORT int chunks_read(
    void *chunks, int64_t rows, const int64_t *deleted, int64_t deleted_count, int64_t begin, int64_t position,
    uint8_t *const *outs, uint8_t *const *defined, const uint8_t *const *fillers, const int64_t *const *slots,
    Staging *const *staging, int64_t staged_rows, uint8_t *refused);
EXPORT int lists_read(void *chunks, int64_t number, ListRows *rows);
EXPORT int chunks_close(void *chunks);

#endif
