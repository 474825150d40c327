"""``parquet-loader import FORMAT SOURCE OUT``: converts other formats to Parquet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from parquet_loader.cli.console import printable, show_json, show_lines
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import (
    ImportReport,
    import_images,
    import_lmdb,
    import_mosaicml,
    import_tfrecord,
    import_webdataset,
)


@click.group(name="import", epilog="Example: parquet-loader import images photos data/photos --progress")
def imports() -> None:
    """Import images and other formats to Parquet.

    Bytes are kept as they are. An import that was interrupted is continued by the same command; the data set appears
    when all of it is there.
    """


def _add(
    run: Callable[..., ImportReport], name: str, source: str, text: str, example: str, *, has_columns: bool
) -> None:
    """Add a command that imports one format."""

    def command(source: str, target: str, *, as_json: bool, progress: bool, **given: str | None) -> None:
        columns = given.pop("columns", None)
        chosen = {"columns": [name.strip() for name in columns.split(",")]} if columns is not None else {}
        options = WriteOptions(**{name: size for name, size in given.items() if size is not None})
        try:
            report = run(source, target, options=options, progress=progress, **chosen)
        except KeyboardInterrupt:
            click.echo(f"interrupted: the same command continues the import to {printable(target)}", err=True)
            raise
        if as_json:
            show_json(report.to_dict())
        else:
            show_lines(*str(report).splitlines())

    command.__doc__ = text
    decorators = [
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        click.option("--progress", is_flag=True, help="Show a progress bar (needs tqdm)."),
        click.option("--file-bytes", help="Size of a file; default: 512 MiB."),
        click.option("--row-group-bytes", help="Decoded size of a row group; default: 8 MiB."),
        click.argument("target", metavar="OUT"),
        click.argument("source", metavar=source),
        imports.command(name=name, epilog=f"Example: parquet-loader import {name} {example}"),
    ]
    if has_columns:
        decorators.insert(0, click.option("--columns", help="Names to import, with commas between them; default: all."))
    made: Any = command
    for decorate in decorators:
        made = decorate(made)


_add(import_images, "images", "DIR", "Import the folder of images DIR to the directory OUT.", "photos data/photos",
     has_columns=False)  # fmt: skip
_add(import_webdataset, "webdataset", "SOURCE", "Import a tar, a directory of tars or a pattern to the directory OUT.",
     "'shards/train-*.tar' data/train", has_columns=True)  # fmt: skip
_add(import_tfrecord, "tfrecord", "SOURCE", "Import TFRecord files of tf.train.Example to the directory OUT.",
     "'records/train-*.tfrecord' data/train", has_columns=True)  # fmt: skip
_add(import_mosaicml, "mosaicml", "DIR", "Import the MDS shards in DIR to the directory OUT.",
     "shards/train data/train", has_columns=True)  # fmt: skip
_add(import_lmdb, "lmdb", "DIR", "Import the LMDB in DIR, or a file, to the directory OUT.", "train.lmdb data/train",
     has_columns=False)  # fmt: skip
