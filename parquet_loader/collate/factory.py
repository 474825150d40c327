"""Makes the output of a loader; imports torch only for tensors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from parquet_loader.collate.numpy_output import ArrayOutput
from parquet_loader.collate.output import Batch, Output
from parquet_loader.collate.table_outputs import TableOutput
from parquet_loader.common import OutputOptions, Shard, needs_package
from parquet_loader.errors import ConfigurationError
from parquet_loader.schema import Schema


def open_output(options: OutputOptions, device: Any, *, keeps: bool = False) -> Output:
    """Return the output that the options name.

    Args:
        options: The format.
        device: The device of tensors and JAX arrays.
        keeps: Whether rows stay on the device: ``cache="device"``.

    Raises:
        ConfigurationError: The output cannot use the device.
        MissingDeviceError: This machine has no such GPU.
        MissingPackageError: The package of the format is not installed.
    """
    if keeps and options.format != "torch":
        raise ConfigurationError(f"cache='device': OutputOptions(format={options.format!r}) has no device; use tensors")
    if options.format == "numpy":
        return ArrayOutput(device)
    if options.format in ("arrow", "pandas", "polars"):
        return TableOutput(options.format, device)
    if options.format == "jax":
        return _jax().JaxOutput(device, options.sharding)  # type: ignore[no-any-return]
    if options.format == "tensorflow":
        return _tensorflow_output(device)
    with needs_package(
        "torch",
        "batches of tensors need torch: pip install 'torch-parquet-loader[torch]', or pass "
        "output_options=OutputOptions(format='numpy') for numpy arrays",
    ):
        from parquet_loader.collate.torch_output import TensorOutput  # noqa: PLC0415  (imports torch)
    return TensorOutput(device, options, keeps=keeps)


def output_shard(options: OutputOptions, shard: Shard | None, batch_size: int, *, drop_last: bool) -> Shard | None:
    """Return the shard that a loader reads: the caller's choice, or with JAX the one of this process.

    None leaves the choice to `torch.distributed`.

    Raises:
        ConfigurationError: A sharding does not fit the other arguments.
    """
    if options.format != "jax" or (shard is not None and options.sharding is None):
        return shard
    chosen: Shard = _jax().default_shard(options.sharding, batch_size, drop_last=drop_last)
    if shard is not None and shard != chosen:
        raise ConfigurationError(
            f"shard={shard} with OutputOptions(sharding=...): the sharding says that this process reads {chosen}; "
            "leave shard out"
        )
    return chosen


def _jax() -> Any:
    with needs_package("jax", "OutputOptions(format='jax') needs JAX: pip install 'torch-parquet-loader[jax]'"):
        from parquet_loader.collate import jax_output  # noqa: PLC0415  (imports JAX)
    return jax_output


def _tensorflow_output(device: Any) -> Output:
    with needs_package(
        "tensorflow",
        "OutputOptions(format='tensorflow') needs TensorFlow: pip install 'torch-parquet-loader[tensorflow]'",
    ):
        from parquet_loader.collate.tf_output import TensorFlowOutput  # noqa: PLC0415  (imports TensorFlow)
    return TensorFlowOutput(device)


def tf_dataset(
    begin: Callable[[Output], Iterator[Batch]],
    fields: Mapping[str, Any],
    *,
    rows: int | None,
    row_numbers: str | None,
    cardinality: int | None,
    cuts_windows: bool,
) -> Any:
    """Return a `tf.data.Dataset`; see `tf_dataset.dataset_of`.

    Args:
        begin: Begins an epoch in the format of an output.
        fields: The schema of batches, or the specs of their columns.
        rows: Rows of each batch; None if they differ.
        row_numbers: The name of a column of row numbers, which a schema lacks.
        cardinality: Batches of each epoch; None if unknown.
        cuts_windows: Whether TensorFlow may cut batches from windows, if their columns are numbers of one shape.

    Raises:
        MissingPackageError: TensorFlow is not installed.
    """
    with needs_package("tensorflow", "to_tf() needs TensorFlow: pip install 'torch-parquet-loader[tensorflow]'"):
        from parquet_loader.collate.tf_dataset import (  # noqa: PLC0415  (imports TensorFlow)
            dataset_of,
            has_one_width,
            signature_of,
        )
    if not isinstance(fields, Schema):
        return dataset_of(begin, fields, cardinality, cuts_windows=False)
    signature = signature_of(fields, rows, row_numbers)
    return dataset_of(begin, signature, cardinality, cuts_windows=cuts_windows and has_one_width(fields))


def keras_dataset(
    begin: Callable[[int, int, Output], Iterator[Batch]],
    select: Callable[[Batch], Any] | None,
    batches: int,
    position: tuple[int, int],
) -> Any:
    """Return a `keras.utils.PyDataset`; see `keras_dataset.LoaderPyDataset`.

    Raises:
        MissingPackageError: Keras is not installed.
    """
    with needs_package("keras", "to_keras() needs Keras 3: pip install 'keras>=3.5'"):
        from parquet_loader.collate.keras_dataset import LoaderPyDataset  # noqa: PLC0415  (imports Keras)
    output = ArrayOutput(None)
    return LoaderPyDataset(lambda epoch, batch: begin(epoch, batch, output), select, batches, *position)


def grain_dataset(
    begin: Callable[[Output], Iterator[Batch]],
    get_state: Callable[[], dict[str, Any]],
    set_state: Callable[[dict[str, Any]], None],
) -> Any:
    """Return a `grain.IterDataset`; see `grain_dataset.LoaderIterDataset`.

    Raises:
        MissingPackageError: Grain is not installed.
    """
    with needs_package("grain", "to_grain() needs Grain: pip install 'grain>=0.2.10'"):
        from parquet_loader.collate.grain_dataset import LoaderIterDataset  # noqa: PLC0415  (imports Grain)
    return LoaderIterDataset(lambda: begin(ArrayOutput(None)), get_state, set_state)


def epoch_sampler(loader: Any) -> Any:
    """Return the object on which trainers call `set_epoch`: a torch sampler if torch is loaded, else the loader."""
    if "torch" not in sys.modules:
        return loader
    from parquet_loader.collate.samplers import EpochSampler  # noqa: PLC0415  (torch is loaded)

    return EpochSampler(loader)
