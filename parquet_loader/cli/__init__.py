"""The command line: ``parquet-loader COMMAND``. Each command has its own module."""

from __future__ import annotations

import contextlib
import os
import sys

import click
import pyarrow as pa

from parquet_loader.cli.bench import bench
from parquet_loader.cli.cache import cache
from parquet_loader.cli.console import show_error, with_options
from parquet_loader.cli.doctor import doctor
from parquet_loader.cli.imports import imports
from parquet_loader.cli.inspect import info, inspect
from parquet_loader.cli.petastorm import petastorm
from parquet_loader.cli.rewrite import rewrite
from parquet_loader.cli.sample import sample
from parquet_loader.cli.simulate import simulate
from parquet_loader.cli.store import store
from parquet_loader.cli.version import show_version
from parquet_loader.errors import ParquetLoaderError

# Exit statuses; docs/cli.md lists them.
_WRONG_USE, _INTERRUPTED = 2, 130


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example: parquet-loader inspect data/train",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show what is installed."
)
def commands() -> None:
    """Feed deep-learning training from Parquet."""


commands.add_command(bench)
commands.add_command(cache)
commands.add_command(doctor)
commands.add_command(imports)
commands.add_command(info)
commands.add_command(inspect)
commands.add_command(petastorm)
commands.add_command(rewrite)
commands.add_command(sample)
commands.add_command(simulate)
commands.add_command(store)


def run() -> None:
    """Run a command and exit: 0 after success, 1 after an error, 2 after wrong use; errors are one line."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # streams that are not Python's text files
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(_status())


def _status() -> int:
    try:
        status = commands(prog_name="parquet-loader", standalone_mode=False)
        if sys.stdout is not None:  # None: it was closed before Python started
            sys.stdout.flush()
    except click.UsageError as error:
        if error.ctx is not None and type(error).__name__ == "NoArgsIsHelpError":
            click.echo(error.ctx.get_help(), err=True)
            return _WRONG_USE
        path = error.ctx.command_path if error.ctx is not None else "parquet-loader"
        show_error(f"{error.format_message().rstrip('.')}; see {path} --help")
        return _WRONG_USE
    except click.ClickException as error:
        return show_error(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ParquetLoaderError, OSError, ValueError, ImportError, MemoryError, pa.ArrowException) as error:
        return show_error(with_options(str(error)) or type(error).__name__)
    return status if isinstance(status, int) else 0


__all__ = ["commands", "run"]
