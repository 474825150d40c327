/* Levels. Those of definition in flat columns: 1 for a value, 0 for a null. */
#ifndef LEVELS_H
#define LEVELS_H

#include <stdint.h>

#include "runs.h"

/* Levels that are read forward. */
typedef struct {
  const uint8_t *next, *stop;
  Run run;             /* the run under way, */
  int64_t done, left;  /* its levels that were read, and that are still to come */
} Levels;

/* How many of the levels of a page say that there is a value; -1: the runs do not add up to so many levels, or there is
 * something behind them. */
int64_t count_defined(const uint8_t *next, const uint8_t *stop, int64_t values);

/* Whether the definition levels of a page are all `level`, and nothing is behind them. */
int all_levels(const uint8_t *next, const uint8_t *stop, int64_t values, int level);

/* Whether the repetition levels of a page, 0 or 1, say that all lists hold `size` values, and nothing is behind them.
 * `position`: of the page's first value in its list. */
int lists_add_up(const uint8_t *next, const uint8_t *stop, int64_t values, int64_t position, int64_t size);

/* Writes the next levels, of 1 or 2 bits and of `left` that are still to come, to `defined`; they have been counted. */
int read_levels(Levels *levels, int64_t left, int64_t count, int bits, uint8_t *defined);

#endif
