/* Decodes parts of JPEG images with libjpeg-turbo. It is the library that Pillow has loaded.
 *
 * This file declares the interface of libjpeg 6b (version 62), unchanged since 1998. The library refuses callers with another
 * version or another structure size. */
#ifndef JPEG_H
#define JPEG_H

#include <setjmp.h>
#include <stdint.h>

#include "../kernels.h"

enum { VERSION = 62, STRUCTURE_BYTES = 632 };  /* of 64-bit platforms; jpeg_use refuses others */

typedef struct decoder Decoder;

/* jpeg_error_mgr. */
typedef struct {
  void (*fail)(Decoder *);
  void (*warn)(Decoder *, int level);
  void (*print)(Decoder *);
  void (*format)(Decoder *, char *);
  void (*reset)(Decoder *);
  int code;
  union {
    int i[8];
    char s[80];
  } parameters;
  int trace_level;
  long warnings;
  const char *const *messages;
  int last_message;
  const char *const *added_messages;
  int first_added, last_added;
} Errors;

/* jpeg_decompress_struct up to the tables, with the names of libjpeg. */
typedef struct {
  Errors *err;
  void *mem, *progress, *client_data;
  int is_decompressor, global_state;
  void *src;
  unsigned image_width, image_height;
  int num_components, jpeg_color_space, out_color_space;
  unsigned scale_num, scale_denom;
  double output_gamma;
  int buffered_image, raw_data_out, dct_method, do_fancy_upsampling, do_block_smoothing;
  int quantize_colors, dither_mode, two_pass_quantize, desired_number_of_colors;
  int enable_1pass_quant, enable_external_quant, enable_2pass_quant;
  unsigned output_width, output_height;
  int out_color_components, output_components, rec_outbuf_height;
  int actual_number_of_colors;
  void *colormap;
  unsigned output_scanline;
  int input_scan_number;
  unsigned input_iMCU_row;
  int output_scan_number;
  unsigned output_iMCU_row;
  void *coef_bits;
  void *quant_tbl_ptrs[4], *dc_huff_tbl_ptrs[4], *ac_huff_tbl_ptrs[4];
} Known;

struct decoder {
  union {
    Known known;
    uint8_t all[STRUCTURE_BYTES];
  } its;
  Errors errors;
  jmp_buf failed;
  int is_open, images;
};

/* Decodes an image of which each side is divided by `factor`: at least the pixels of `part` (top, bottom, left, right; not
 * empty and inside of the image) to their offsets in `out`, which is contiguous memory for the whole image of `shape`
 * (height, width, channels). Other pixels may be overwritten.
 *
 * Set `decoder->is_open` to 0 before the first image. A decoder decodes any number of images, one after another; then call
 * close_decoder. */
int decode_with(
    Decoder *decoder, const uint8_t *data, int64_t nbytes, int32_t factor, const int32_t *part, const int32_t *shape,
    uint8_t *out);

void close_decoder(Decoder *decoder);

#endif
