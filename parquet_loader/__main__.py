"""``python -m parquet_loader``: the command line, as the console script ``parquet-loader`` runs it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from parquet_loader.cli import run  # noqa: PLC0415  (the message below is for those who lack it)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'torch-parquet-loader[cli]'")
    run()


if __name__ == "__main__":
    main()
