"""Finds the documents of a source: reads their lengths, and replaces text by cached tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from parquet_loader.common import Shard, broadcasting_errors
from parquet_loader.dataset import Dataset, ListedDataset, ranks_to_agree_with, settings_of, with_columns
from parquet_loader.errors import SchemaError
from parquet_loader.loader.column_scan import ScanOptions
from parquet_loader.loader.tokens.lengths import DocumentLengths, read_lengths
from parquet_loader.loader.tokens.token_cache import TextOrigin, cached_tokens
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from parquet_loader.schema import Schema, Text


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """The documents of a source, with their lengths. A copy of a pickled loader need not read them again.

    Attributes:
        dataset: The source; opened, if it comes from a pickled loader.
        lengths: The lengths of all documents.
        lengths_column: The column that states them; None if they are counted.
        origin: Where the text of cached tokens comes from; None for other documents.
    """

    dataset: Dataset | ListedDataset
    lengths: DocumentLengths
    lengths_column: str | None
    origin: TextOrigin | None


def document_source(
    listed: ListedDataset,
    columns: list[str],
    tokens: str,
    lengths: str | None,
    encoder: DocumentEncoder | None,
    options: ScanOptions,
) -> DocumentSource:
    """Return the documents of a source; if the tokens of text are cached, those of the cache.

    Args:
        listed: The source.
        columns: The columns that are read.
        tokens, lengths: The columns of tokens or text, and of lengths, as the caller names them.
        encoder: Turns text into tokens; None if the column holds tokens.
        options: How the lengths, or the rows of text, are read.
    """
    if options.shard is None:
        options = replace(options, shard=settings_of(listed).shard)
    origin: TextOrigin | None = None
    if encoder is not None:
        _check_text(with_columns(listed, columns).schema, tokens)
    if encoder is not None and encoder.cache is not None:
        with broadcasting_errors(ranks_to_agree_with(options.shard)):
            cached = cached_tokens(listed, columns, encoder, options)
        listed, lengths, origin = cached.listed, cached.lengths, cached.origin
        # Ranks may have caches of their own, whose files have different names.
        options = replace(options, filters=None, shard=Shard(0, 1))
    found = read_lengths(listed, lengths or tokens, options, None if lengths is not None else encoder)
    return DocumentSource(with_columns(listed, columns), found, lengths, origin)


def _check_text(schema: Schema, tokens: str) -> None:
    """Check that a tokenizer's column holds text.

    Raises:
        SchemaError: It does not.
    """
    if not isinstance(schema[tokens], Text):
        raise SchemaError(f"tokens={tokens!r}: expected a column of text for the tokenizer, found {schema[tokens]!r}")
