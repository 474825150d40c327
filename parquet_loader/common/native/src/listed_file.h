/* A local file, and whether it is as it was listed. */
#ifndef LISTED_FILE_H
#define LISTED_FILE_H

#include "file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>

typedef struct {
  const char *path;
  int64_t size, mtime_ns;
} ListedFile;

static inline int is_as_listed(const ListedFile *listed, const struct stat *found) {
#ifdef __APPLE__
  const struct timespec *changed = &found->st_mtimespec;
#else
  const struct timespec *changed = &found->st_mtim;
#endif
  /* Modulo 2^64, like the time in `listed`. */
  const uint64_t mtime_ns = (uint64_t)changed->tv_sec * 1000000000 + (uint64_t)changed->tv_nsec;
  return S_ISREG(found->st_mode) && found->st_size == listed->size && mtime_ns == (uint64_t)listed->mtime_ns;
}

/* Opens a file; returns 0, or the error's number. A file that is not regular is left closed: to open a named pipe would
 * wait for its writer. */
static inline int open_listed(const ListedFile *listed, FileBytes *source, int *is_same) {
  struct stat found;
  if (stat(listed->path, &found)) return errno;
  if (!S_ISREG(found.st_mode)) return 0;
  do source->file = open(listed->path, O_RDONLY | O_CLOEXEC);
  while (source->file < 0 && errno == EINTR);
  if (source->file < 0 || fstat(source->file, &found)) return errno;
  source->size = found.st_size;
  *is_same = is_as_listed(listed, &found);
  return 0;
}

/* Whether the path still names a file that is as listed. */
static inline int is_still_listed(const ListedFile *listed) {
  struct stat found;
  return !stat(listed->path, &found) && is_as_listed(listed, &found);
}

#endif
