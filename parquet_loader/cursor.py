"""A row group read forward, a slice at a time."""

from __future__ import annotations

from parquet_loader.errors import DataError
from parquet_loader.pieces import Piece
from parquet_loader.read import Reader


class Cursor:
    """A row group held open, read forward a slice at a time. Used by one thread at a time."""

    def __init__(self, reader: Reader, row_group: int, batch_rows: int) -> None:
        self._stream = reader.pieces(row_group, batch_rows)
        self._left: Piece | None = None
        self.position = 0

    def take(self, rows: int) -> list[Piece]:
        """Return the next `rows` canonical rows in pieces of any size, to be read before more are asked for."""
        pieces: list[Piece] = []
        needed = rows
        while needed:
            piece = self._left if self._left is not None else next(self._stream, None)
            if piece is None:
                raise DataError(f"a row group ended {needed} rows early: it changed since its rows were counted")
            taken, self._left = piece.slice(0, needed), None
            if piece.rows > needed:
                self._left = piece.slice(needed, piece.rows)
            if taken.rows:
                pieces.append(taken)
            needed -= taken.rows
        self.position += rows
        return pieces

    def finish(self) -> None:
        """Read to the end of the row group, which checks that its rows were those the footer promised, and close."""
        if any(piece.rows for piece in self._stream):
            raise DataError("a row group holds more rows than were counted: it changed since")
        self.close()

    def close(self) -> None:
        """Close the file and let go of what is buffered."""
        self._stream.close()  # type: ignore[attr-defined]
        self._left = None
