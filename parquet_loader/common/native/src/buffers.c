/* Large buffers are mapped, and released ones are kept for reuse by all threads.
 *
 * malloc keeps freed memory for each thread, and a page of a megabyte fragments it: with 16 open row groups it held
 * 200 MiB that nobody used. Here, buffers in use and kept buffers together take no more than the recent peak of buffers
 * in use. So page faults are rare, and decoding needs no extra memory.
 */
#include "buffers.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SMALL (1 << 16)  /* bytes that are left to malloc */
#define MOST_KEPT 1024  /* buffers */
#define MOST_KEPT_BYTES (1 << 28)
#define FORGET 14  /* each new buffer lowers the recorded peak by 2**-14, so that old peaks are forgotten */

/* Released buffers, oldest first. `is_taken` guards them, and nobody waits for it: a thread that finds it set maps or
 * unmaps memory instead. So does a forked child for ever, if its parent held the flag during the fork. */
static Buffer kept[MOST_KEPT + 1];
static int kept_count;
static int64_t kept_bytes, most_used_bytes;
static atomic_flag is_taken = ATOMIC_FLAG_INIT;
static _Atomic int64_t used_bytes;  /* mapped, without the kept ones */

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1  /* as gcc calls it */
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FROM_MALLOC(nbytes) 1  /* so that the sanitizer finds reads beyond a buffer */
#else
#define FROM_MALLOC(nbytes) ((nbytes) <= SMALL)
#endif

static Buffer taken_out(int number) {
  Buffer buffer = kept[number];
  kept_bytes -= buffer.capacity + SLACK;
  kept_count--;
  for (int i = number; i < kept_count; i++) kept[i] = kept[i + 1];
  return buffer;
}

static int64_t bytes_of(const Buffer *buffer) { return buffer->capacity + SLACK; }

static void unmap(Buffer *buffer) { munmap(buffer->bytes, (size_t)bytes_of(buffer)); }

/* Unmaps the oldest buffers beyond the limits. `used`: bytes that are in use, or about to be. */
static void keep_few(int64_t used) {
  int64_t most = most_used_bytes - used;
  if (most > MOST_KEPT_BYTES) most = MOST_KEPT_BYTES;
  while (kept_count && (kept_count > MOST_KEPT || kept_bytes > most)) {
    Buffer oldest = taken_out(0);
    unmap(&oldest);
  }
}

/* Returns the smallest kept buffer of at least `nbytes`, and at most twice as much. If there is none, kept buffers are
 * unmapped to make space for a new one of `mapped` bytes. */
static Buffer kept_buffer(int64_t nbytes, int64_t mapped) {
  Buffer found = {NULL, 0};
  if (atomic_flag_test_and_set_explicit(&is_taken, memory_order_acquire)) return found;
  int best = -1;
  for (int i = 0; i < kept_count; i++) {
    if (kept[i].capacity < nbytes || kept[i].capacity / 2 > nbytes) continue;
    if (best < 0 || kept[i].capacity < kept[best].capacity) best = i;
  }
  if (best >= 0) found = taken_out(best);
  const int64_t used = atomic_load_explicit(&used_bytes, memory_order_relaxed) + (best < 0 ? mapped : bytes_of(&found));
  most_used_bytes -= most_used_bytes >> FORGET;
  if (most_used_bytes < used) most_used_bytes = used;
  keep_few(used);
  atomic_flag_clear_explicit(&is_taken, memory_order_release);
  return found;
}

int reserve(Buffer *buffer, int64_t nbytes) {
  if (buffer->bytes && nbytes <= buffer->capacity) return OK;
  release(buffer);
  if (nbytes < 0 || nbytes > INT64_MAX / 2) return NO_MEMORY;
  if (FROM_MALLOC(nbytes)) {
    buffer->bytes = malloc((size_t)nbytes + SLACK);
    buffer->capacity = buffer->bytes ? nbytes : 0;
    return buffer->bytes ? OK : NO_MEMORY;
  }
  /* Round up, so that pages of about the same size fit. */
  const int64_t step = nbytes / 8 < SMALL ? SMALL : nbytes / 8 / SMALL * SMALL;
  const int64_t mapped = (nbytes + SLACK + step - 1) / step * step;
  *buffer = kept_buffer(nbytes, mapped);
  if (!buffer->bytes) {
    void *memory = mmap(NULL, (size_t)mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NO_MEMORY;
    *buffer = (Buffer){memory, mapped - SLACK};
  }
  atomic_fetch_add_explicit(&used_bytes, bytes_of(buffer), memory_order_relaxed);
  return OK;
}

void release(Buffer *buffer) {
  Buffer given = *buffer;
  *buffer = (Buffer){NULL, 0};
  if (!given.bytes) return;
  if (FROM_MALLOC(given.capacity)) {
    free(given.bytes);
    return;
  }
  const int64_t nbytes = bytes_of(&given);
  const int64_t used = atomic_fetch_sub_explicit(&used_bytes, nbytes, memory_order_relaxed) - nbytes;
  if (nbytes > MOST_KEPT_BYTES / 2 || atomic_flag_test_and_set_explicit(&is_taken, memory_order_acquire)) {
    unmap(&given);
    return;
  }
  kept[kept_count++] = given;
  kept_bytes += nbytes;
  keep_few(used);
  atomic_flag_clear_explicit(&is_taken, memory_order_release);
}

int shelve(Shelf *shelf, Buffer *buffer) {
  if (!buffer->bytes) return OK;
  if (shelf->count == shelf->capacity) {
    int64_t capacity = 2 * shelf->capacity + 8;
    Buffer *buffers = realloc(shelf->buffers, (size_t)capacity * sizeof(Buffer));
    if (!buffers) return NO_MEMORY;
    shelf->buffers = buffers, shelf->capacity = capacity;
  }
  shelf->buffers[shelf->count++] = *buffer;
  *buffer = (Buffer){NULL, 0};
  return OK;
}

void release_shelf(Shelf *shelf) {
  for (int64_t i = 0; i < shelf->count; i++) release(&shelf->buffers[i]);
  free(shelf->buffers);
  *shelf = (Shelf){NULL, 0, 0};
}

/* Unmaps all kept buffers; the peak is recorded anew. */
EXPORT void buffers_trim(void) {
  if (atomic_flag_test_and_set_explicit(&is_taken, memory_order_acquire)) return;
  const int64_t used = atomic_load_explicit(&used_bytes, memory_order_relaxed);
  most_used_bytes = used;
  keep_few(used);
  atomic_flag_clear_explicit(&is_taken, memory_order_release);
}
