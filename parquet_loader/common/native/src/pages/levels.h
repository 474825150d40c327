/* Definition and repetition levels. A column has up to MOST_DEFINED definition levels: the highest one for a value, and all
 * lower ones, without lists, for a null, of the column or of a struct around it. */
#ifndef LEVELS_H
#define LEVELS_H

#include <stdint.h>

#include "runs.h"

enum { MOST_DEFINED = 7 };

/* The bits of a level of up to `level`, at most MOST_DEFINED. */
static inline int level_bits(int level) { return level < 2 ? 1 : level < 4 ? 2 : 3; }

/* Levels that are read forward. */
typedef struct {
  const uint8_t *next, *stop;
  Run run;             /* the current run */
  int64_t done, left;  /* levels of the run that were read, and that were not */
} Levels;

/* Counts the levels of a page that are `level`; -1: one is higher, its runs do not add up to `values` levels, or bytes
 * follow. */
int64_t count_defined(const uint8_t *next, const uint8_t *stop, int64_t values, int level);

/* Whether the definition levels of a page are all `level`, and no bytes follow. */
int all_levels(const uint8_t *next, const uint8_t *stop, int64_t values, int level);

/* Whether all lists of a page hold `size` values by its repetition levels, 0 or 1, and no bytes follow. `position`: the index
 * of the page's first value in its list. */
int lists_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t position, int64_t size);

/* Begins the next run if the current one has been read; `left`: all levels that follow. */
int begin_levels(Levels *levels, int64_t left, int bits);

/* Writes the next `count` of `left` levels, of up to 3 bits, to `out`. Their runs have been checked before. */
int read_levels(Levels *levels, int64_t left, int64_t count, int bits, uint8_t *out);

/* As `read_levels`, but writes 1 for levels that are `level`, and 0 for others. */
int read_defined(Levels *levels, int64_t left, int64_t count, int level, uint8_t *defined);

#endif
