"""Turns text into token ids with a tokenizer of the package `tokenizers`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from parquet_loader.common import check_kind
from parquet_loader.dataset import digest
from parquet_loader.errors import ConfigurationError, MissingPackageError
from parquet_loader.plan import Lengths
from parquet_loader.schema import Ragged

# Bytes of text in one call of the tokenizer: enough for all of its threads, and few enough to hold twice.
_CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TokenizerOptions:
    """How a `TokenLoader` turns a column of text into token ids.

    Attributes:
        tokenizer: A `tokenizers.Tokenizer`, the path of a ``tokenizer.json``, or a fast tokenizer of transformers. The
            loader uses a copy without truncation and padding, and adds no special tokens except `bos` and `eos`.
        bos, eos: The token before and the token after each document: its text or its id.
        cache: A local directory that keeps the tokens, as Parquet, with the carried columns. Then the constructor
            tokenizes the text once, and epochs and later starts read tokens. Each combination of tokenizer, files,
            filters and columns has tokens of its own; old ones are not removed.
    """

    tokenizer: Any
    bos: str | int | None = None
    eos: str | int | None = None
    cache: str | os.PathLike[str] | None = None


class DocumentEncoder:
    """Encodes documents; any thread may use it. A pickled one holds the tokenizer as JSON.

    Args:
        options: The tokenizer and its special tokens.

    Attributes:
        cache: The directory of `TokenizerOptions`.
        identity: Text that identifies the tokenizer and the special tokens.
        dtype: uint16 if that holds every id, else int32.

    Raises:
        ConfigurationError: The tokenizer or a token does not exist, or the tokenizer is empty or not deterministic.
        MissingPackageError: The package tokenizers is not installed.
    """

    def __init__(self, options: TokenizerOptions) -> None:
        check_kind("tokenizer", options, TokenizerOptions)
        is_path = isinstance(options.cache, str | os.PathLike) and "://" not in str(options.cache)
        if options.cache is not None and not is_path:
            raise ConfigurationError(f"cache={options.cache!r:.80}: expected the path of a local directory")
        self.cache = None if options.cache is None else Path(options.cache)
        self._tokenizer = _copied(options.tokenizer)
        if getattr(self._tokenizer.model, "dropout", None):
            raise ConfigurationError(
                "tokenizer=: the model has dropout, so a document has other tokens each time; set model.dropout = None"
            )
        self._bos, self._eos = (
            _id_of(self._tokenizer, name, token) for name, token in (("bos", options.bos), ("eos", options.eos))
        )
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ConfigurationError(
                "tokenizer=: its vocabulary is empty, so text has no tokens; train it, or load one"
            )
        largest = max([*vocabulary.values(), *self._bos, *self._eos])
        self.dtype: Any = np.dtype(np.uint16 if largest < 2**16 else np.int32)
        self.identity = f"{digest(self._tokenizer.to_str().encode())} {self._bos} {self._eos}"

    def __reduce__(self) -> tuple[Any, ...]:
        special = (part[0] if part else None for part in (self._bos, self._eos))
        return _restored, (self._tokenizer.to_str(), *special, self.cache)

    def counts(self, texts: Sequence[str]) -> Lengths:
        """Return the number of tokens of each document, int32 ``[documents]``."""
        more = len(self._bos) + len(self._eos)
        return np.fromiter((len(e) + more for e in self._encoded(texts)), np.int32, len(texts))

    def count_column(self, columns: dict[str, Any], rng: object) -> dict[str, Any]:  # noqa: ARG002
        """Return the counts of the only column; a `transform`."""
        ((name, texts),) = columns.items()
        return {name: self.counts(texts.tolist())}

    def __call__(self, texts: Sequence[str]) -> Ragged:
        """Return the tokens of each document."""
        rows = [e.ids for e in self._encoded(texts)]
        offsets = np.zeros(len(rows) + 1, np.int64)
        more = len(self._bos) + len(self._eos)
        np.cumsum(np.fromiter((len(row) + more for row in rows), np.int64, len(rows)), out=offsets[1:])
        values = np.empty(offsets[-1], self.dtype)
        for row, (begin, end) in zip(rows, pairwise(offsets.tolist()), strict=True):
            values[begin + len(self._bos) : end - len(self._eos)] = row
        if self._bos:
            values[offsets[:-1]] = self._bos[0]
        if self._eos:
            values[offsets[1:] - 1] = self._eos[0]
        return Ragged(values, offsets)

    def _encoded(self, texts: Sequence[str]) -> Any:
        # `encode_batch_fast` skips offsets of characters; tokenizers has it since 0.20.
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return encode(list(texts), add_special_tokens=False)


def encoder_of(tokenizer: Any) -> DocumentEncoder:
    """Return the encoder of a `TokenLoader`'s argument, which may be the tokenizer itself."""
    if isinstance(tokenizer, DocumentEncoder):
        return tokenizer
    return DocumentEncoder(tokenizer if isinstance(tokenizer, TokenizerOptions) else TokenizerOptions(tokenizer))


def chunks_of(texts: Ragged) -> list[tuple[int, int]]:
    """Return ranges of rows, ``(start, stop)``, of about `_CHUNK_BYTES` of text each; `stop` is exclusive."""
    rows = len(texts.offsets) - 1
    cuts = np.arange(texts.offsets[0] + _CHUNK_BYTES, texts.offsets[-1], _CHUNK_BYTES)
    bounds = sorted({0, rows, *np.searchsorted(texts.offsets, cuts).tolist()})
    return list(pairwise(bounds))


def joined(parts: Sequence[Ragged], dtype: npt.DTypeLike) -> Ragged:
    """Concatenate the documents of all parts."""
    return Ragged.cat(list(parts)) if parts else Ragged(np.empty(0, dtype), np.zeros(1, np.int64))


def _copied(tokenizer: Any) -> Any:
    """Return a copy that neither truncates nor pads."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of transformers
    try:
        if isinstance(backend, str | os.PathLike):
            from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)

            try:
                copy = Tokenizer.from_file(os.fspath(backend))
            except Exception as error:  # of a class that Rust defines
                raise ConfigurationError(f"tokenizer={tokenizer!r}: not a tokenizer.json: {error}") from error
        elif hasattr(backend, "to_str") and hasattr(backend, "encode_batch") and not isinstance(backend, type):
            copy = type(backend).from_str(backend.to_str())
        else:
            raise ConfigurationError(
                f"tokenizer={tokenizer!r:.80}: expected a tokenizers.Tokenizer, the path of a tokenizer.json, or a "
                "fast tokenizer of transformers"
            )
    except ModuleNotFoundError as error:
        if error.name != "tokenizers":
            raise
        raise MissingPackageError(
            "tokenizer= needs tokenizers: pip install 'torch-parquet-loader[tokenizers]'"
        ) from error
    copy.no_truncation()
    copy.no_padding()
    return copy


def _id_of(tokenizer: Any, name: str, token: str | int | None) -> list[int]:
    if token is None:
        return []
    found = tokenizer.token_to_id(token) if isinstance(token, str) else token
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < 2**31:
        raise ConfigurationError(f"{name}={token!r}: the tokenizer has no such token; give its text, or its id")
    return [found]


def _restored(tokenizer: str, bos: int | None, eos: int | None, cache: Path | None) -> DocumentEncoder:
    from tokenizers import Tokenizer  # noqa: PLC0415  (an extra)

    return DocumentEncoder(TokenizerOptions(Tokenizer.from_str(tokenizer), bos, eos, cache))
