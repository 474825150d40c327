#include "levels.h"

#include "runs.h"

int all_defined(const uint8_t *next, const uint8_t *stop, int64_t values) {
  Run run;
  while (values > 0) {
    if (read_run(&next, stop, values, 1, &run)) return 0;
    if (!run.is_literal && run.repeated != 1) return 0;
    int64_t some = values < (int64_t)run.count ? values : (int64_t)run.count;
    if (run.is_literal) {
      for (int64_t i = 0; i < some; i += 8) {
        uint8_t mask = some - i >= 8 ? 0xFF : (uint8_t)((1 << (some - i)) - 1);
        if ((run.values[i / 8] & mask) != mask) return 0;
      }
    }
    values -= some;
  }
  return next == stop;
}
