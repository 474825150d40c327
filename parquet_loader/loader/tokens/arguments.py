"""Checks the arguments of a `TokenLoader`, and finds which columns have values for each token."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parquet_loader.common import OutputOptions, ShardOptions, check_int
from parquet_loader.errors import ConfigurationError, SchemaError, UnsupportedError
from parquet_loader.loader.tokens.documents import BATCH_KEYS
from parquet_loader.loader.tokens.epoch_packing import PackingRule
from parquet_loader.loader.tokens.tokenizing import DocumentEncoder
from parquet_loader.plan import Overflow, Pack
from parquet_loader.schema import Audio, Image, RaggedList, Scalar, Schema, Tensor, Text, Video, heads, masks_of


def check_supported(
    encoder: DocumentEncoder | None,
    boundaries: str | None,
    isolation: str,
    shard_options: ShardOptions | None,
    output_options: OutputOptions | None,
) -> None:
    """Check that these arguments of a `TokenLoader` fit each other.

    Raises:
        UnsupportedError: They do not.
    """
    if encoder is not None and boundaries is not None:
        raise UnsupportedError("tokenizer= with boundaries=: each row of text is one document; leave boundaries out")
    if encoder is not None and encoder.cache is None and isolation == "process":
        raise UnsupportedError(
            "tokenizer= with isolation='process': the threads of this process tokenize; leave isolation out, or choose "
            "TokenizerOptions(cache=...)"
        )
    if shard_options is not None and shard_options.remainder == "uneven":
        raise UnsupportedError(
            f"shard_options={shard_options!r}: a TokenLoader gives all ranks the same number of sequences; choose "
            "remainder='drop' or 'pad'"
        )
    if output_options is not None and output_options.format not in ("torch", "numpy"):
        raise UnsupportedError(
            f"output_options: format={output_options.format!r}: sequences are tensors or numpy arrays; choose "
            "format='torch' or 'numpy'"
        )
    if output_options is not None and output_options.row_numbers is not None:
        raise UnsupportedError(
            f"output_options: row_numbers={output_options.row_numbers!r}: a sequence holds pieces of several rows; "
            "leave it out, lineage(batch) names the rows"
        )


def chosen_keys(keys: Sequence[str] | None) -> tuple[str, ...]:
    """Return the keys of a batch, in their order.

    Raises:
        ConfigurationError: The caller names others, or leaves out the tokens.
    """
    if keys is None:
        return BATCH_KEYS
    is_named = isinstance(keys, Collection) and not isinstance(keys, str) and all(name in BATCH_KEYS for name in keys)
    if not is_named or "input_ids" not in keys:
        raise ConfigurationError(f"keys={keys!r:.120}: expected some of {list(BATCH_KEYS)}, 'input_ids' among them")
    return tuple(name for name in BATCH_KEYS if name in keys)


def batching(
    length: int,
    pack: Pack,
    overflow: Overflow,
    batch_size: int | None,
    batch_tokens: int | None,
    multiple: int | None,
) -> tuple[PackingRule, int]:
    """Return how documents are packed, and the bins of a batch; see `PackingRule`."""
    if pack == "by_length":
        if batch_tokens is None or batch_size is not None:
            raise ConfigurationError(
                f"pack='by_length', batch_size={batch_size}, batch_tokens={batch_tokens}: give batch_tokens; batches "
                "differ in their number of documents"
            )
        _check_batch_tokens(batch_tokens, widest(length, multiple))
        return PackingRule(length, pack, overflow, batch_tokens, multiple or 1), 1
    if (batch_size is None) == (batch_tokens is None):
        raise ConfigurationError(
            f"batch_size={batch_size}, batch_tokens={batch_tokens}: give one of them, the sequences of a batch or its "
            "tokens"
        )
    rule = PackingRule(length, pack, overflow)
    if batch_tokens is None:
        return rule, check_int("batch_size", batch_size, 1, 2**31)
    width = widest(length, multiple)
    _check_batch_tokens(batch_tokens, width)
    return rule, batch_tokens // width


def widest(length: int, multiple: int | None) -> int:
    """Return the largest width of a batch: `length`, rounded up to `multiple`."""
    return -(-length // (multiple or 1)) * (multiple or 1)


def _check_batch_tokens(batch_tokens: int, width: int) -> None:
    check_int("batch_tokens", batch_tokens, 1, 2**40)
    if batch_tokens < width:
        raise ConfigurationError(
            f"batch_tokens={batch_tokens}: a batch holds at least one sequence of {width} tokens; pass at least {width}"
        )


def columns_read(tokens: str, boundaries: str | None, carried: list[str], lengths: str | None) -> list[str]:
    """Return the columns to read.

    Raises:
        ConfigurationError: A column is named twice, or has the name of another key of a batch.
    """
    for label, name in (("tokens", tokens), ("boundaries", boundaries), ("lengths", lengths)):
        if (name is not None or label == "tokens") and (not isinstance(name, str) or not name):
            raise ConfigurationError(f"{label}={name!r:.80}: expected a column's name")
    if boundaries == tokens:
        raise ConfigurationError(
            f"boundaries={boundaries!r}: this column has the tokens; name the column with the position of each "
            "document's first token in a row, such as 'seq_start_id'"
        )
    taken = [name for name in carried if name in BATCH_KEYS or name == tokens or carried.count(name) > 1]
    if taken:
        raise ConfigurationError(
            f"carry={carried}: {taken[0]!r} is in the batch already; leave it out, or rename the column"
        )
    return list(dict.fromkeys([tokens, *carried, *([] if boundaries is None else [boundaries])]))


def roles(
    schema: Schema, tokens: str, boundaries: str | None, carry: Sequence[str], *, is_text: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the carried columns with a value for each token, and those (with masks) with a value for each document.

    The name of a struct carries all its members.

    Raises:
        SchemaError: Tokens or boundaries are not lists of integers.
        UnsupportedError: A carried column holds images or recordings.
    """
    for label, name in (("tokens", None if is_text else tokens), ("boundaries", boundaries)):
        if name is not None and not _is_list_of_integers(schema[name]):
            of_text = label == "tokens" and isinstance(schema[name], Text)
            text = "; pass tokenizer= for text" if of_text else ""
            raise SchemaError(
                f"{label}={name!r}: expected a column with a list of integers in each row, found {schema[name]!r}{text}"
            )
    carry = [leaf for name in carry for leaf in schema if name in heads(leaf)]
    for name in carry:
        if isinstance(schema[name], Image | Audio | Video):
            kind = "images" if isinstance(schema[name], Image) else "recordings"
            raise UnsupportedError(f"carry: column {name!r} holds {kind}, which are not carried with tokens")
    of_schema = masks_of(schema)
    masks = [of_schema[name] for name in carry if name in of_schema]
    if is_text:
        return (), (*carry, *masks)
    of_tokens = schema[tokens]
    width = of_tokens.shape[0] if isinstance(of_tokens, Tensor) else None
    aligned = [name for name in carry if _has_value_each(schema[name], width)]
    return tuple(aligned), (*(name for name in carry if name not in aligned), *masks)


def _is_list_of_integers(field: Any) -> bool:
    if isinstance(field, RaggedList):
        return isinstance(field.item, Scalar) and pa.types.is_integer(field.item.type)
    return isinstance(field, Tensor) and len(field.shape) == 1 and pa.types.is_integer(field.type)


def _has_value_each(field: Any, width: int | None) -> bool:
    """Return whether a field has a value for each token; `width` is the length of all documents, if it is the same."""
    if isinstance(field, RaggedList):
        return isinstance(field.item, Scalar | Tensor)
    return isinstance(field, Tensor) and field.shape[0] == width


def value_bytes(field: Any) -> int:
    """Return the bytes of one token's value in a carried column."""
    item = field.item if isinstance(field, RaggedList) else field
    shape = () if isinstance(item, Scalar) else item.shape if isinstance(field, RaggedList) else item.shape[1:]
    nbytes: int = math.prod(shape) * np.dtype(item.dtype).itemsize
    return nbytes
