/* CRC-32C (Castagnoli), eight bytes a step. The tables are made at the first call; threads that make them at the same time
 * write the same values. */
#include <stdint.h>
#include <string.h>

#include "kernels.h"

static uint32_t table[8][256];
static volatile int is_made;

static void make_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0x82F63B78) : 0);
    table[0][byte] = sum;
  }
  for (int step = 1; step < 8; step++)
    for (uint32_t byte = 0; byte < 256; byte++)
      table[step][byte] = table[step - 1][byte] >> 8 ^ table[0][table[step - 1][byte] & 255];
  __sync_synchronize();
  is_made = 1;
}

/* Returns the checksum of `length` bytes. */
EXPORT uint32_t crc32c(const uint8_t *data, int64_t length) {
  if (!is_made) make_table();
  __sync_synchronize();
  uint32_t sum = UINT32_MAX;
  for (; length >= 8; data += 8, length -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    word ^= sum;
    sum = table[7][word & 255] ^ table[6][word >> 8 & 255] ^ table[5][word >> 16 & 255] ^ table[4][word >> 24 & 255] ^
          table[3][word >> 32 & 255] ^ table[2][word >> 40 & 255] ^ table[1][word >> 48 & 255] ^ table[0][word >> 56];
  }
  for (; length > 0; length--) sum = sum >> 8 ^ table[0][(sum ^ *data++) & 255];
  return ~sum;
}
