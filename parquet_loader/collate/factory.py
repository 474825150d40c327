"""Makes the output of a loader; imports torch only for tensors."""

from __future__ import annotations

import sys
from typing import Any

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Output
from parquet_loader.collate.table_outputs import TableOutput
from parquet_loader.common import OutputOptions
from parquet_loader.errors import MissingPackageError


def open_output(options: OutputOptions, device: Any) -> Output:
    """Return the output that the options name.

    Raises:
        ConfigurationError: the device is not one that the output can use.
        MissingDeviceError: this machine has no such GPU.
        MissingPackageError: the package of the format is not installed.
    """
    if options.format == "numpy":
        return ArrayOutput(device)
    if options.format in ("arrow", "pandas", "polars"):
        return TableOutput(options.format, device)
    try:
        from parquet_loader.collate.torch_output import TensorOutput  # noqa: PLC0415  (imports torch)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingPackageError(
            "batches of tensors need torch: pip install 'torch-parquet-loader[torch]', or pass "
            "output_options=OutputOptions(format='numpy') for numpy arrays"
        ) from error
    return TensorOutput(device)


def epoch_sampler(loader: Any) -> Any:
    """Return the object on which trainers call `set_epoch`: a torch sampler if torch is loaded, else the loader."""
    if "torch" not in sys.modules:
        return loader
    from parquet_loader.collate.samplers import EpochSampler  # noqa: PLC0415  (torch is loaded)

    return EpochSampler(loader)
