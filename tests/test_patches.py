"""Tests look at the package from outside: each place that patches it is listed here, with the reason.

What a test claims is shown by public figures, request logs, files and results; thresholds are arguments. A patch is for
what cannot be had otherwise: a failure or a death at one exact moment, and systems other than this one.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = "parquet_loader"

_KERNELS = "as on a system without a C compiler; PARQUET_LOADER_NATIVE=0 would take a process for each case"
_KILLED = "the process is killed at this moment of a commit"
_RACE = "another process comes between two steps"

# For each file: what it patches of the package, and why.
ALLOWED: dict[str, dict[str, str]] = {
    "collate/test_cuda.py": {
        "parquet_loader.collate.device.pinned_memory.PinnedMemory.allocate": "memory of tensors that no GPU has to pin",
        "parquet_loader.collate.torch_output.TensorOutput.allocator": "the path of pinned memory, without a GPU",
        "output._device": "the path of a GPU, without one",
        "permuted._output._pinned": "the path of pinned memory, without a GPU",
    },
    "collate/test_device_images.py": {
        "parquet_loader.collate.device.images.DeviceImages._column": "the device has no memory for a batch",
        "parquet_loader.collate.device.images.ORIGINALS_BYTES": "portions of images that tests can afford",
        "parquet_loader.collate.device.images.WEIGHTS_BYTES": "portions of images that tests can afford",
        "parquet_loader.collate.device.pinned_memory.PinnedMemory.allocate": "memory of tensors that no GPU has to pin",
        "parquet_loader.collate.torch_output.TensorOutput.allocator": "the path of pinned memory, without a GPU",
    },
    "collate/test_device_windows.py": {
        "parquet_loader.collate.device.windows.CHUNK_BYTES": "parts of windows that tests can afford",
        "parquet_loader.collate.device.windows.DeviceWindows._copy": "the device has no memory for a window",
        "loader._output._pinned": "the path of pinned memory, without a GPU",
        "parquet_loader.collate.device.pinned_memory.PinnedMemory.allocate": "memory of tensors that no GPU has to pin",
        "parquet_loader.collate.torch_output.TensorOutput.allocator": "the path of pinned memory, without a GPU",
    },
    "collate/test_kept_rows.py": {
        "parquet_loader.collate.device.windows.DeviceWindows._copy": "the device has no memory for a window",
    },
    "collate/test_registered_memory.py": {
        "output._registered": "the path of a GPU, without one",
        "parquet_loader.collate.device.registered_memory.HeldSources.hold": "records the memory that is held",
        "parquet_loader.collate.device.windows.DeviceWindows._copy": "records the memory that is copied from",
        "parquet_loader.collate.device.windows.DeviceWindows.release": "records the process that releases memory",
        "parquet_loader.collate.device.windows.moved": "records the memory that is copied from",
    },
    "collate/test_token_rows.py": {
        "parquet_loader.collate.token_rows.KERNELS": _KERNELS,
        "parquet_loader.common.native.permute.KERNELS": _KERNELS,
    },
    "common/test_permute.py": {"parquet_loader.common.native.permute.KERNELS": _KERNELS},
    "dataset/test_memory_budget.py": {"parquet_loader.dataset.row_sizes._peek": "the system cannot read a page header"},
    "decode/media/test_resizing.py": {"parquet_loader.decode.media.resizing.KERNELS": _KERNELS},
    "decode/test_native.py": {
        "parquet_loader.common.native.bindings.KERNELS.chunks_read": "the kernels get no memory",
        "parquet_loader.common.native.permute.KERNELS": _KERNELS,
        "parquet_loader.decode.NativeChunks.read": "no column is decoded to an array: that would fail the test",
        "parquet_loader.decode.NativeChunks.read_into": "pages turn out to be other than expected at each call in turn",
        "parquet_loader.decode.native.column_reader.KERNELS": _KERNELS,
        "parquet_loader.decode.native.decodable.LOADED_CODECS": "as on a system without libraries for these codecs",
    },
    "decode/test_page_claims.py": {"parquet_loader.decode.native.page_check.KERNELS": _KERNELS},
    "decode/test_pages.py": {
        "parquet_loader.decode.plain_pages.KERNELS": _KERNELS,
        "parquet_loader.decode.opened_chunks.NativeChunks": f"{_RACE}: it replaces the file",
        "parquet_loader.decode.opened_chunks.raw_pages": f"{_RACE}: it cuts the file short",
    },
    "decode/test_plan_patterns.py": {
        "parquet_loader.engine.read_scheduler.TOGETHER_BYTES": "row groups that are read together have no plan each",
    },
    "engine/test_images_of_few_pixels.py": {
        "parquet_loader.engine.media_decoding._few_pixels_lock": "counts the portions that are decoded by one thread",
    },
    "engine/test_isolation.py": {
        "parquet_loader.engine.child.client.ReadingProcess.stop": "another thread closes the loader at this moment",
    },
    "engine/test_open_files.py": {
        "made._reading_process._child.channel._end": "the other end of the pipe says half a message, and then nothing",
        "parquet_loader.engine.child.process._START": "the reading process has fewer descriptors than its parent",
    },
    "engine/test_shared_batches.py": {
        "parquet_loader.decode.jpeg.JpegTasks.run": "two threads decode at the same time",
        "parquet_loader.engine.media_decoding.write_image": "two threads decode at the same time, or have no memory",
    },
    "engine/test_worker_pool.py": {
        "parquet_loader.engine.workers.worker_pool.Thread": "the system runs a new thread before its starter",
        "parquet_loader.engine.workers.worker_pool.queued_s": "the process has no memory at this moment",
    },
    "frameworks/test_jax.py": {
        "parquet_loader.collate.jax_transfers.batched_device_put": "a version of jaxlib whose function differs",
    },
    "interop/test_dask_kills.py": {"parquet_loader.write.jobs.job.WriteJob.commit": _KILLED},
    "interop/test_hdfs_jobs.py": {
        "job._directory.remove": _KILLED,
        "parquet_loader.write.jobs.commit._remove_all": _KILLED,
        "parquet_loader.write.jobs.commit.look_up": f"{_RACE}: it publishes its files",
        "parquet_loader.write.jobs.job.JobDirectory.remove_files": _KILLED,
        "parquet_loader.write.jobs.job.move_file": _KILLED,
        "parquet_loader.write.jobs.lease._has_expired": "pyarrow cannot set the time of a file on HDFS",
    },
    "interop/test_spark_kills.py": {"parquet_loader.write.jobs.job.WriteJob.commit": _KILLED},
    "loader/test_episodes.py": {
        "parquet_loader.engine.WindowMedia.decode": "which images are decoded, and how often",
        "parquet_loader.loader.episodes.sample_windows.SampleCutter._bridge": "the most memory of kept images",
    },
    "loader/test_resume.py": {
        "parquet_loader.dataset.row_sizes._cursor_bytes": "an earlier release measured open row groups differently",
    },
    "loader/test_review.py": {
        "parquet_loader.engine.engine.Engine._admit": "memory runs out in a step of the engine itself",
        "parquet_loader.engine.engine.Engine.close": "Ctrl-C comes at the moment at which an epoch is closed",
    },
    "loader/test_tokenizers.py": {
        "parquet_loader.loader.tokens.token_cache.ListedDataset": "no file descriptor is free just for the kept tokens",
        "parquet_loader.loader.tokens.tokenizing.DocumentEncoder.__call__": "how many documents a start tokenizes",
        "parquet_loader.loader.tokens.tokenizing._CHUNK_BYTES": "windows of many chunks without megabytes of text",
    },
    "plan/test_packing.py": {"parquet_loader.plan.packing.KERNELS": _KERNELS},
    "read/cache/test_cache.py": {
        "parquet_loader.read.cache.directory.CacheDirectory.begin": f"{_RACE}: it ends its fetch of the row group",
    },
    "read/test_out_of_memory.py": {
        "parquet_loader.loader.epochs.epoch_figures.EpochFigures.observe": "memory runs out in the calling thread",
        "parquet_loader.store.files.file_catalog.read_footer": "the disk fails: no file here gives EIO",
    },
    "read/test_small_row_groups.py": {
        "parquet_loader.read.RowGroupReader.joint_rows": "counts the row groups of a call",
        "parquet_loader.source.ChunkPattern.extents": "counts comparisons, which take no time that a test can measure",
        "parquet_loader.window.variable_width._StagedValues.reserve_addresses": "memory runs out between two columns",
    },
    "schema/test_ragged.py": {"parquet_loader.common.native.permute.KERNELS": _KERNELS},
    "store/test_jobs.py": {"parquet_loader.store.atomic_publish.finish_commit": _KILLED},
    "store/test_writers_that_say_so.py": {
        "parquet_loader.store.writer._publish_if_due": "the process has no memory at this moment",
    },
    "support/jpeg.py": {"parquet_loader.decode.jpeg.KERNELS": _KERNELS},
    "window/test_groups.py": {
        "parquet_loader.decode.NativeChunks.read_into": "which columns kernels decode to the window",
    },
    "window/test_long_values.py": {
        "parquet_loader.window.variable_width.Views.measured": "counts the values that are copied",
    },
    "write/test_jobs.py": {
        "job._directory.remove": _KILLED,
        "parquet_loader.write.jobs.commit.move_file": _KILLED,
        "parquet_loader.write.jobs.job.JobDirectory.remove_files": _KILLED,
        "parquet_loader.write.jobs.job.move_file": _KILLED,
    },
    "write/test_rewrite.py": {
        "parquet_loader.write.rewrite.external_shuffle.Buckets.at": "Ctrl-C or a lack of memory, at each of two steps",
        "parquet_loader.write.rewrite.rewrite.open_snapshot": "the published files cannot be read back",
        "parquet_loader.write.rewrite.source_scan.Rows.slices": "a source loses rows, and its files look as before",
    },
}


class Patches(ast.NodeVisitor):
    """Finds what a module patches of the package: by monkeypatch, by mock, by `setattr` and by assignment.

    Programs that tests run in other processes are looked at too: texts that can be parsed and import the package.
    """

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._names: dict[str, str] = {}  # of modules, classes and functions that were imported

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else (alias.name.partition(".")[0])
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self._names[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and "\n" in node.value and PACKAGE in node.value:
            try:
                inner = ast.parse(textwrap.dedent(node.value))
            except SyntaxError:
                return
            program = Patches()
            program.visit(inner)
            self.found |= program.found

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in {"setattr", "delattr", "setitem", "delitem", "object", "patch", "multiple"} and node.args:
            target = node.args[0]
            if isinstance(target, ast.Constant | ast.JoinedStr):
                text = ast.unparse(target).strip("f'\"")
                if text.startswith(f"{PACKAGE}."):
                    self.found.add(text)
            elif len(node.args) > 1:
                attribute = node.args[1].value if isinstance(node.args[1], ast.Constant) else ast.unparse(node.args[1])
                self._add(target, str(attribute))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(one, ast.Attribute):
                    self._add(one.value, one.attr)
        self.generic_visit(node)

    def _add(self, target: ast.expr, attribute: str) -> None:
        """Add an attribute of something imported from the package, and a private one of anything but `self`."""
        parts = ast.unparse(target).split(".")
        root = self._names.get(parts[0], "")
        path = ".".join([root or parts[0], *parts[1:], attribute])
        if root.partition(".")[0] == PACKAGE or (
            not root and parts[0] != "self" and any(_is_private(part) for part in [*parts[1:], attribute])
        ):
            self.found.add(path)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def patches_of(path: Path) -> set[str]:
    finder = Patches()
    finder.visit(ast.parse(path.read_text("utf-8")))
    return finder.found


def files() -> Iterator[Path]:
    return (path for path in sorted(TESTS.rglob("*.py")) if path.name != "test_patches.py")


def test_every_patch_of_the_package_has_a_reason() -> None:
    found = {str(path.relative_to(TESTS)): patches for path in files() if (patches := patches_of(path))}
    assert found == {name: set(reasons) for name, reasons in ALLOWED.items()}
    assert all(reason for reasons in ALLOWED.values() for reason in reasons.values())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from parquet_loader.a import B\nmonkeypatch.setattr(B, 'c', 1)", "parquet_loader.a.B.c"),
        ("from parquet_loader import a\nmonkeypatch.setattr(a.B, name, 1)", "parquet_loader.a.B.name"),
        ("import parquet_loader.a\nparquet_loader.a.B = 1", "parquet_loader.a.B"),
        ("monkeypatch.setattr('parquet_loader.a.B', 1)", "parquet_loader.a.B"),
        ("patch.setattr(f'parquet_loader.{a}.B', 1)", "parquet_loader.{a}.B"),
        ("from unittest import mock\nmock.patch('parquet_loader.a.B')", "parquet_loader.a.B"),
        ("from parquet_loader import a\nsetattr(a, 'B', 1)", "parquet_loader.a.B"),
        ("loader._engine.x = 1", "loader._engine.x"),
        ("code = '''\nfrom parquet_loader import a\na.B = 1\n'''", "parquet_loader.a.B"),
        ("import os\nmonkeypatch.setattr(os, 'rename', 1)", None),
        ("from tests.support import far\nfar._CHUNK = 1", None),
    ],
)
def test_patches_of_every_kind_are_found(code: str, expected: str | None) -> None:
    finder = Patches()
    finder.visit(ast.parse(code))
    assert finder.found == ({expected} if expected else set())
