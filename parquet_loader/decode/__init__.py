"""Decodes a file's stored columns to canonical columns: one type a field, no nulls."""

from __future__ import annotations

from parquet_loader.decode.array_formats import (
    BlobProblem,
    image_array,
    npy_array,
    npz_array,
)
from parquet_loader.decode.chunk_pages import PageMap, begins_within_row, indexed_pages, walked_pages
from parquet_loader.decode.columns import Column, columns_of, number_type
from parquet_loader.decode.converters import (
    coded_words,
    convert,
    first_beyond_nanoseconds,
    one_array,
    plain,
)
from parquet_loader.decode.decoder import ColumnProblems, Decoder, NullError, TableOrigin, parts_of, read_name, type_at
from parquet_loader.decode.encoded_columns import ValueProblem, cut_at_once, read_array, unpack
from parquet_loader.decode.expected_routes import ChunkRoute, chunk_routes
from parquet_loader.decode.file_references import FileReference, unpacked_reference
from parquet_loader.decode.jpeg import decode_jpeg
from parquet_loader.decode.lazy_rows import (
    READ_ERRORS,
    DeferredColumns,
    LazyRows,
    SkippedRows,
    StraightTargets,
    Target,
)
from parquet_loader.decode.media import (
    EncodedRows,
    JpegBatch,
    JpegPart,
    RangeFile,
    VideoDecoderCache,
    audio_modules,
    decode_audio,
    decode_clips,
    has_device_form,
    has_few_pixels,
    image_formats,
    image_pixels,
    jpeg_part,
    jpeg_parts,
    scale_and_offset,
    video_module,
    write_image,
)
from parquet_loader.decode.native.column_reader import Dictionary, NativeChunks, NotDecodedError, PageMemory
from parquet_loader.decode.native.decodable import DecodableChunks, decodable_chunks, is_known_codec, is_known_type
from parquet_loader.decode.native.page_check import check_pages
from parquet_loader.decode.native.whole_row_groups import ListedRowGroup, WholeRowGroups
from parquet_loader.decode.nested_lists import (
    element_bytes,
    flat_arrays,
    flat_columns,
    flat_widths,
    joined_lists,
    ragged_rows,
)
from parquet_loader.decode.opened_chunks import ChunkPlan, OpenChunks, PlanPattern, open_chunks
from parquet_loader.decode.page_file import (
    BeyondNanosecondsError,
    PageFileSchema,
    decode_pages,
    file_of_pages,
    leaf_chains,
    leaves_in,
    opening_page,
    page_file_buffer,
    page_file_schema,
)
from parquet_loader.decode.page_headers import FeedCheck, chunk_bounds, header_at, page_header
from parquet_loader.decode.plain_pages import RawFile
from parquet_loader.decode.routes import Arrangement, ColumnRoute, ColumnSource, arrangement_of, holds_rows, routes_of
from parquet_loader.decode.value_ranges import ValueRange, packed_ranges
