/* Python finds the library that Pillow has loaded and passes its functions. Any error or warning ends the decoding; Pillow then
 * decodes or refuses the image. */
#include "jpeg.h"

#include <string.h>

enum { GRAY = 1, RGB = 2, YCBCR = 3 };         /* color spaces */
enum { ROWS = 16 };                            /* most rows requested at once */
enum { MOST_IMAGES = 8 };                      /* of one decoder */
enum { MARGIN = 2 };                           /* pixels of a neighbor block that upsampling of colors reads */

/* In the order in which jpeg_use takes them. */
static struct {
  Errors *(*std_error)(Errors *);
  void (*create)(Decoder *, int, size_t);
  void (*destroy)(Decoder *);
  void (*memory_source)(Decoder *, const uint8_t *, unsigned long);
  int (*read_header)(Decoder *, int);
  int (*start)(Decoder *);
  unsigned (*read_rows)(Decoder *, uint8_t **, unsigned);
  int (*finish)(Decoder *);
  void (*crop)(Decoder *, unsigned *, unsigned *);
  unsigned (*skip_rows)(Decoder *, unsigned);
  void (*abort)(Decoder *);
} library;

static void fail(Decoder *decoder) { longjmp(decoder->failed, 1); }

static void warn(Decoder *decoder, int level) {
  if (level < 0) fail(decoder);
}

static void print(Decoder *decoder) { (void)decoder; }

/* Prepares `decoder` for `library.create`; afterwards call `library.destroy`. */
static void prepare(Decoder *decoder) {
  memset(decoder, 0, sizeof *decoder);
  decoder->its.known.err = library.std_error(&decoder->errors);
  decoder->errors.fail = fail;
  decoder->errors.warn = warn;
  decoder->errors.print = print;
}

/* Takes the addresses of the library's functions. Returns whether it has the interface declared here. */
EXPORT int jpeg_use(const void *const *functions) {
  if (sizeof(void *) != 8 || sizeof(long) != 8 || sizeof(Known) > STRUCTURE_BYTES) return 0;
  memcpy(&library, functions, sizeof library);
  Decoder decoder;
  prepare(&decoder);
  if (setjmp(decoder.failed)) return 0;  /* nothing is allocated before version and size are compared */
  library.create(&decoder, VERSION, STRUCTURE_BYTES);
  library.destroy(&decoder);
  return 1;
}

/* Writes height, width and channels: 1 for grey, 3 for YCbCr. Returns whether the image is one of these. */
static int read_header(const uint8_t *data, int64_t nbytes, int32_t *shape) {
  if (nbytes < 3 || data[0] != 0xFF || data[1] != 0xD8 || data[2] != 0xFF) return 0;
  Decoder decoder;
  prepare(&decoder);
  if (setjmp(decoder.failed)) {
    library.destroy(&decoder);
    return 0;
  }
  library.create(&decoder, VERSION, STRUCTURE_BYTES);
  library.memory_source(&decoder, data, (unsigned long)nbytes);
  library.read_header(&decoder, 1);
  const Known *known = &decoder.its.known;
  shape[0] = (int32_t)known->image_height;
  shape[1] = (int32_t)known->image_width;
  shape[2] = known->jpeg_color_space == YCBCR ? 3 : known->jpeg_color_space == GRAY ? 1 : 0;
  library.destroy(&decoder);
  return shape[2] != 0;
}

/* Writes height, width and channels of `count` images: 1 channel for grey, 3 for YCbCr, 0 for anything else. `places` has the
 * beginning and the end of each image in `data`. */
EXPORT void jpeg_headers(const uint8_t *data, const int64_t *places, int64_t count, int32_t *shapes) {
  for (int64_t i = 0; i < count; i++, places += 2)
    if (!read_header(data + places[0], places[1] - places[0], shapes + 3 * i)) shapes[3 * i + 2] = 0;
}

/* Returns whether decoding a part only gives the same pixels, and finds the same errors, as decoding the whole image: if the
 * image is sequential with 8 bits, usual color sampling and one scan, and complete up to its end marker. */
static int is_partly_decodable(const uint8_t *data, int64_t nbytes) {
  const uint8_t *at = data + 2, *end = data + nbytes;
  int channels = 0;
  while (end - at >= 4 && at[0] == 0xFF) {
    const int marker = at[1];
    const int64_t length = (int64_t)at[2] << 8 | at[3];
    if (marker == 0xFF) {  /* a fill byte */
      at++;
      continue;
    }
    if (marker < 0xC0 || (marker >= 0xD0 && marker <= 0xD9) || length < 2 || length > end - at - 2) return 0;
    const uint8_t *content = at + 4;
    at += 2 + length;
    if (marker == 0xC0 || marker == 0xC1) {
      if (channels || length < 8 || content[0] != 8) return 0;
      channels = content[5];
      if ((channels != 1 && channels != 3) || length != 8 + 3 * channels) return 0;
      const int sampling = content[7];
      if (sampling != 0x11 && (channels == 1 || (sampling != 0x21 && sampling != 0x22))) return 0;
      if (channels == 3 && (content[10] != 0x11 || content[13] != 0x11)) return 0;
    } else if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4) {
      return 0;
    } else if (marker == 0xDA) {
      if (!channels || length < 3 || content[0] != channels) return 0;
      break;
    }
  }
  while ((at = at < end ? memchr(at, 0xFF, (size_t)(end - at)) : NULL) && end - at >= 2) {
    if (at[1] == 0xD9) return 1;
    if (at[1] != 0 && at[1] != 0xFF && (at[1] < 0xD0 || at[1] > 0xD7)) return 0;
    at += at[1] == 0xFF ? 1 : 2;
  }
  return 0;
}

int decode_with(
    Decoder *decoder, const uint8_t *data, int64_t nbytes, int32_t factor, const int32_t *part, const int32_t *shape,
    uint8_t *out) {
  const unsigned height = (unsigned)shape[0], width = (unsigned)shape[1], channels = (unsigned)shape[2];
  const int is_part = (part[0] > 0 || part[1] < shape[0] || part[2] > 0 || part[3] < shape[1])
                      && is_partly_decodable(data, nbytes);
  const unsigned top = is_part ? (unsigned)part[0] : 0, bottom = is_part ? (unsigned)part[1] : height;
  const unsigned left = is_part && part[2] > MARGIN ? (unsigned)part[2] - MARGIN : 0;
  const unsigned right = is_part && part[3] + MARGIN < shape[1] ? (unsigned)part[3] + MARGIN : width;
  if (!decoder->is_open) prepare(decoder);
  if (setjmp(decoder->failed)) {
    close_decoder(decoder);
    return OTHER;
  }
  if (!decoder->is_open) {
    decoder->is_open = 1;
    library.create(decoder, VERSION, STRUCTURE_BYTES);
  }
  library.memory_source(decoder, data, (unsigned long)nbytes);
  library.read_header(decoder, 1);
  Known *known = &decoder->its.known;
  known->out_color_space = channels == 1 ? GRAY : RGB;
  known->scale_num = 1;
  known->scale_denom = (unsigned)factor;
  library.start(decoder);
  if (known->output_height != height || known->output_width != width || known->output_components != (int)channels)
    fail(decoder);
  unsigned begin = left, count = right - left;
  if (count < width) library.crop(decoder, &begin, &count);  /* begins with a whole block */
  if (begin > left || begin + count < right || begin + count > width || known->output_width != count) fail(decoder);
  if (top && library.skip_rows(decoder, top) != top) fail(decoder);
  for (unsigned row = top; row < bottom;) {
    uint8_t *rows[ROWS];
    const unsigned asked = bottom - row < ROWS ? bottom - row : ROWS;
    for (unsigned i = 0; i < asked; i++) rows[i] = out + ((uint64_t)(row + i) * width + begin) * channels;
    const unsigned found = library.read_rows(decoder, rows, asked);
    if (!found || found > asked) fail(decoder);
    row += found;
  }
  if (is_part) library.abort(decoder);
  else library.finish(decoder);
  /* An image without tables must not be decoded with those of the image before. They are freed when the decoder is closed, and
   * until then the library searches memory among them. */
  memset(known->quant_tbl_ptrs, 0, sizeof known->quant_tbl_ptrs);
  memset(known->dc_huff_tbl_ptrs, 0, sizeof known->dc_huff_tbl_ptrs);
  memset(known->ac_huff_tbl_ptrs, 0, sizeof known->ac_huff_tbl_ptrs);
  if (++decoder->images == MOST_IMAGES) close_decoder(decoder);
  return OK;
}

void close_decoder(Decoder *decoder) {
  if (decoder->is_open) library.destroy(decoder);
  decoder->is_open = 0;
}

/* As decode_with, for one image. */
EXPORT int jpeg_decode(
    const uint8_t *data, int64_t nbytes, int32_t factor, const int32_t *part, const int32_t *shape, uint8_t *out) {
  Decoder decoder;
  decoder.is_open = 0;
  const int problem = decode_with(&decoder, data, nbytes, factor, part, shape, out);
  close_decoder(&decoder);
  return problem;
}
