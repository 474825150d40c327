"""``parquet-loader import FORMAT SOURCE OUT``: data sets that are not Parquet, to Parquet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from parquet_loader.cli.console import printable, show_json, show_lines
from parquet_loader.write import WriteOptions
from parquet_loader.write.imports import ImportReport, import_images


@click.group(name="import", epilog="Example: parquet-loader import images photos data/photos --progress")
def imports() -> None:
    """Import images and other formats to Parquet.

    Bytes are kept as they are. An import that was interrupted is continued by the same command; the data set appears
    when all of it is there.
    """


def _importer(run: Callable[..., ImportReport], name: str, source: str, example: str) -> Callable[..., Any]:
    """Add a command that imports one format."""

    def command(source: str, target: str, *, as_json: bool, progress: bool, **sizes: str | None) -> None:
        options = WriteOptions(**{name: size for name, size in sizes.items() if size is not None})
        try:
            report = run(source, target, options=options, progress=progress)
        except KeyboardInterrupt:
            click.echo(f"interrupted: the same command continues the import to {printable(target)}", err=True)
            raise
        if as_json:
            show_json(report.to_dict())
        else:
            show_lines(*str(report).splitlines())

    command.__doc__ = run.__doc__ and run.__doc__.split("\n\n")[0]
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON."),
        click.option("--progress", is_flag=True, help="Show a progress bar (needs tqdm)."),
        click.option("--file-bytes", help="Size of a file; default: 512 MiB."),
        click.option("--row-group-bytes", help="Size of a row group once decoded; default: 8 MiB."),
        click.argument("target", metavar="OUT"),
        click.argument("source", metavar=source),
        imports.command(name=name, epilog=f"Example: parquet-loader import {example}"),
    ):
        command = decorate(command)
    return command


images = _importer(import_images, "images", "DIR", "images photos data/photos")
