"""Makes batches from windows: numpy arrays or tensors, in ordinary or pinned memory or on a GPU."""

from __future__ import annotations

from parquet_loader.collate.factory import (
    epoch_sampler,
    grain_dataset,
    keras_dataset,
    open_output,
    output_shard,
    tf_dataset,
)
from parquet_loader.collate.output import (
    Batch,
    CountedOutput,
    DeviceFigures,
    DeviceRows,
    Output,
    PermutingOutput,
    Pulled,
    rows_of,
)
from parquet_loader.collate.table_outputs import arrow_table
from parquet_loader.collate.token_rows import (
    TOKEN_ROW_TYPES,
    TOKEN_TYPES,
    Pieces,
    TokenLine,
    WindowTokens,
    write_column,
    write_token_rows,
)
