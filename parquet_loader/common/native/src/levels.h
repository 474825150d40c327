/* Definition levels. */
#ifndef LEVELS_H
#define LEVELS_H

#include <stdint.h>

/* Whether the definition levels of a page say that no value is null: 1 for each, and nothing behind them. */
int all_defined(const uint8_t *next, const uint8_t *stop, int64_t values);

#endif
