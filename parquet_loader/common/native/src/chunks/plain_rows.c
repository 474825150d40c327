/* Reads the rows of uncompressed PLAIN pages from a file directly to their slots. */
#include "../file_bytes.h"

#include <sys/uio.h>

#include "../buffers.h"

/* Rows at least this wide are read directly to their slots, many in one call of the system. Narrower ones are read to a
 * buffer that stays in the CPU cache, and copied from there. */
enum { DIRECT_BYTES = 2048, BUFFER_BYTES = 1 << 18, VECTORS = 256 };

static int read_vectors(const FileBytes *file, int64_t at, struct iovec *vectors, int count) {
#ifdef __APPLE__  /* macOS 10 has no preadv */
  for (; count; count--, vectors++) {
    int code = fetch(file, at, (int64_t)vectors->iov_len, vectors->iov_base);
    if (code) return code;
    at += (int64_t)vectors->iov_len;
  }
#else
  while (count) {
    ssize_t got = preadv(file->file, vectors, count, (off_t)at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SYSTEM;
    if (got == 0) return ENDED;
    at += got;
    for (; count && (size_t)got >= vectors->iov_len; count--, vectors++) got -= (ssize_t)vectors->iov_len;
    if (!count) break;
    vectors->iov_base = (uint8_t *)vectors->iov_base + got;  /* the system may return fewer bytes */
    vectors->iov_len -= (size_t)got;
  }
#endif
  return OK;
}

static int read_direct(
    const FileBytes *file, int64_t at, int64_t width, int64_t rows, const int64_t *slots, uint8_t *out) {
  struct iovec vectors[VECTORS];
  for (int64_t done = 0; done < rows;) {
    int some = rows - done < VECTORS ? (int)(rows - done) : VECTORS;
    for (int i = 0; i < some; i++) vectors[i] = (struct iovec){out + slots[done + i] * width, (size_t)width};
    int code = read_vectors(file, at + done * width, vectors, some);
    if (code) return code;
    done += some;
  }
  return OK;
}

static int read_buffered(
    const FileBytes *file, int64_t at, int64_t width, int64_t rows, const int64_t *slots, uint8_t *buffer, uint8_t *out) {
  const int64_t at_once = BUFFER_BYTES / width;
  for (int64_t done = 0; done < rows;) {
    int64_t some = rows - done < at_once ? rows - done : at_once;
    int code = fetch(file, at + done * width, some * width, buffer);
    if (code) return code;
#define COPY(nbytes) \
  for (int64_t i = 0; i < some; i++) memcpy(out + slots[done + i] * (nbytes), buffer + i * (nbytes), (size_t)(nbytes))
    FOR_WIDTH(width, COPY)
#undef COPY
    done += some;
  }
  return OK;
}

/* Reads rows `first` to `first + rows` of a column chunk. `starts` has the offset in the file of each page's values, and
 * `first_rows` the rows before each page, and at its end all rows. `slots` has the number of each row in `out`, below
 * `out_rows`; if it is NULL, rows are in order. */
EXPORT int plain_rows_read(
    int file, const int64_t *starts, const int64_t *first_rows, int64_t pages, int64_t width, int64_t first,
    int64_t rows, const int64_t *slots, uint8_t *out, int64_t out_rows) {
  if (width < 1) return OTHER;
  const FileBytes source = {.file = file, .size = INT64_MAX};
  for (int64_t i = 0; slots && i < rows; i++)
    if (slots[i] < 0 || slots[i] >= out_rows) return OTHER;
  Buffer buffer = {NULL, 0};
  int code = slots && width < DIRECT_BYTES ? reserve(&buffer, BUFFER_BYTES) : OK;
  for (int64_t page = 0; page < pages && rows && !code; page++) {
    if (first_rows[page + 1] <= first) continue;
    int64_t some = first_rows[page + 1] - first;
    if (some > rows) some = rows;
    int64_t at = starts[page] + (first - first_rows[page]) * width;
    if (!slots) code = fetch(&source, at, some * width, out), out += some * width;
    else if (buffer.bytes) code = read_buffered(&source, at, width, some, slots, buffer.bytes, out);
    else code = read_direct(&source, at, width, some, slots, out);
    if (slots) slots += some;
    first += some, rows -= some;
  }
  release(&buffer);
  return code ? code : rows ? OTHER : OK;
}
