"""Makes the output and the progress bar of a loader; imports torch or tqdm only if they are asked for."""

from __future__ import annotations

import sys
from typing import Any

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Output
from parquet_loader.common import OutputOptions
from parquet_loader.errors import MissingPackageError


def open_output(options: OutputOptions, device: Any) -> Output:
    """Return what makes batches of a window's arrays.

    Raises:
        MissingPackageError: tensors are asked for, and there is no torch.
    """
    if options.format == "numpy":
        return ArrayOutput(device)
    try:
        from parquet_loader.collate.torch_output import TensorOutput  # noqa: PLC0415  (torch is imported for tensors alone)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackageError(
            "batches of tensors need torch: pip install 'torch-parquet-loader[torch]'; "
            "output_options=OutputOptions(format='numpy') asks for arrays instead"
        ) from error
    return TensorOutput(device)


def epoch_sampler(loader: Any) -> Any:
    """Return what trainers may set epochs on: torch's kind of sampler if torch is loaded, else the loader itself."""
    if "torch" not in sys.modules:
        return loader
    from parquet_loader.collate.samplers import EpochSampler  # noqa: PLC0415  (who asks has imported torch)

    return EpochSampler(loader)
