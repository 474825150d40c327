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
  const int64_t mtime_ns = (int64_t)changed->tv_sec * 1000000000 + changed->tv_nsec;
  return S_ISREG(found->st_mode) && found->st_size == listed->size && mtime_ns == listed->mtime_ns;
}

/* Opens a file; returns 0, or the error's number. Does not wait for a writer if a named pipe has replaced the file. */
static inline int open_listed(const ListedFile *listed, FileBytes *source, int *is_same) {
  struct stat found;
  do source->file = open(listed->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
