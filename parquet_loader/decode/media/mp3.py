"""Adds the length to MP3 files of varying bit rate that do not state it.

Without a header of Xing or VBRI, libsndfile computes the length from the bit rate of the first frame, and reads no
further.
"""

from __future__ import annotations

_FIRST, _SECOND = 3, 2  # MPEG-1 and MPEG-2; 0 is MPEG-2.5
_LAYER_III = 1
_KBIT_PER_S = {
    _FIRST: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    _SECOND: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
_RATES = {_FIRST: (44100, 48000, 32000, 0), _SECOND: (22050, 24000, 16000, 0), 0: (11025, 12000, 8000, 0)}
_MONO = 3
_CONSTANT = 0xFFFE0C00  # the bits of a frame's header that do not change: sync, version, layer and sample rate
_BIT_RATE, _PADDING, _NO_CHECKSUM = 0xF000, 0x200, 0x10000
_ADDED_BIT_RATE = 9 << 12  # its frames have at least 240 bytes, and those of a Xing header need 48


def with_length(data: bytes | memoryview) -> bytes | memoryview:
    """Return an MP3 with a Xing header, if its bit rate varies and it has none; any other one as it is."""
    first = _end_of_id3(data)
    header = _header(data, first)
    size = _frame_bytes(header)
    if not size:
        return data
    is_first, is_mono = header >> 19 & 3 == _FIRST, header >> 6 & 3 == _MONO
    xing = first + 4 + ((17 if is_mono else 32) if is_first else (9 if is_mono else 17))
    if bytes(data[xing : xing + 4]) in (b"Xing", b"Info") or bytes(data[first + 36 : first + 40]) == b"VBRI":
        return data
    content, at, frames, bit_rates = bytes(data), first, 0, set[int]()
    while 0 <= at <= len(content) - 4:
        found = _header(content, at)
        size = _frame_bytes(found) if (found ^ header) & _CONSTANT == 0 else 0
        if not size:  # other bytes, such as a tag
            at = content.find(b"\xff", at + 1)
            continue
        if at + size <= len(content):
            frames += 1
            bit_rates.add(found & _BIT_RATE)
        at += size
    if len(bit_rates) < 2:
        return data
    added = (header & ~(_BIT_RATE | _PADDING)) | _ADDED_BIT_RATE | _NO_CHECKSUM
    frame = added.to_bytes(4, "big") + bytes(xing - first - 4) + b"Xing" + (1).to_bytes(4, "big")
    frame += frames.to_bytes(4, "big")
    return bytes(data[:first]) + frame.ljust(_frame_bytes(added), b"\0") + bytes(data[first:])


def _end_of_id3(data: bytes | memoryview) -> int:
    """Return the number of bytes of the tag at the beginning, which may hold an image; 0 without a tag."""
    if bytes(data[:3]) != b"ID3" or len(data) < 10:
        return 0
    size = 0
    for byte in data[6:10]:
        size = size << 7 | byte & 0x7F
    return 10 + size + (10 if data[5] & 0x10 else 0)


def _header(data: bytes | memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def _frame_bytes(header: int) -> int:
    """Return the bytes of a frame of layer III by its header; 0 if it is not one, or does not state its bit rate."""
    version = header >> 19 & 3
    rate = _RATES.get(version, (0,) * 4)[header >> 10 & 3]
    if header >> 21 != 0x7FF or header >> 17 & 3 != _LAYER_III or not rate:
        return 0
    kbit_per_s = _KBIT_PER_S[max(version, _SECOND)][header >> 12 & 15]
    samples = 1152 if version == _FIRST else 576
    return samples * 125 * kbit_per_s // rate + (header >> 9 & 1) if kbit_per_s else 0
