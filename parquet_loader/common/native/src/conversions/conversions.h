/* How the values of a column are converted when they are decoded: the numbers that Python passes. */
#ifndef CONVERSIONS_H
#define CONVERSIONS_H

enum {
  NO_CONVERSION = 0,
  WIDE_DECIMALS = 1,      /* to decimals of 16 bytes, little-endian */
  NEAREST_DECIMALS = 2,   /* plus the scale, 0 to MOST_SCALE: decimals to the nearest float */
  INT96_TIMESTAMPS = 64,  /* to nanoseconds since 1970, int64 */
  WORD_CODES = 65,        /* byte arrays to their positions in a vocabulary */
  CASTS = 128             /* plus NUMBER_TYPES * (the stored type) + (the delivered type): numbers of another type */
};

/* The types of casts: int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32 and float64. */
enum { NUMBER_TYPES = 10 };

#endif
