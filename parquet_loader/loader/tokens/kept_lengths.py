"""Keeps the numbers of tokens of documents in a local directory, so that text is tokenized once to count them."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parquet_loader.dataset import Dataset, digest
from parquet_loader.errors import PerformanceWarning
from parquet_loader.loader.state import counts_identity, files_identity
from parquet_loader.plan import Lengths

_COLUMN = "tokens"


class KeptLengths:
    """One Parquet file for each tokenizer and set of rows; named by a digest of both.

    A file is written under another name, and renamed when it is whole. One that is damaged or has another number of
    rows counts as missing. Several processes may use the directory at a time.

    Args:
        folder: The directory; made when a file is written.
        dataset: The rows.
        column: The column of text.
        filters: The filter, as text.
        tokenizer: `DocumentEncoder.identity`.
    """

    def __init__(self, folder: Path, dataset: Dataset, column: str, filters: str, tokenizer: str) -> None:
        identity = {
            "files": files_identity(dataset.snapshot),
            "table": None if dataset.snapshot.table is None else dataset.snapshot.table.name,
            "rows": counts_identity(dataset.counts),
            "schema": dataset.schema.to_json(),
            "column": column,
            "filters": filters,
            "tokenizer": tokenizer,
        }
        self._rows = dataset.rows
        self._path = folder / f"lengths-{digest(json.dumps(identity).encode())}.parquet"

    def read(self) -> Lengths | None:
        """Return the lengths, int32 ``[rows]``; None if they are not kept."""
        with suppress(OSError, pa.ArrowException):
            found: Any = pq.read_table(self._path, columns=[_COLUMN]).column(_COLUMN)
            if found.type == pa.int32() and len(found) == self._rows and not found.null_count:
                lengths: Lengths = np.ascontiguousarray(found.to_numpy())
                if not self._rows or lengths.min() >= 0:
                    return lengths.copy()
        return None

    def write(self, lengths: Lengths) -> None:
        """Keep the lengths, int32 ``[rows]``; warns if that is impossible."""
        temporary = ""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            number, temporary = tempfile.mkstemp(".tmp", ".lengths-", self._path.parent)
            with os.fdopen(number, "wb") as file:
                pq.write_table(pa.table({_COLUMN: lengths}), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary)
            warnings.warn(
                f"TokenizerOptions(cache={str(self._path.parent)!r}): the numbers of tokens cannot be kept: {error}; "
                "the next start counts them again",
                PerformanceWarning,
                stacklevel=4,
            )
