"""Tables as Parquet files, written with pyarrow (extra ``parquet``)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from costream.errors import OutputError, UsageError
from costream.sinks.atomic import part_path

_GROUP_ROWS = 1 << 16  # rows buffered in memory before they are written
_TYPES = {
    **dict.fromkeys(("i", "frame", "pts", "id"), "int64"),
    **dict.fromkeys(("warmup", "fresh"), "bool"),
}


def require_parquet() -> None:
    """Raise UsageError if pyarrow is not installed, or not compatible with this NumPy."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"Parquet needs pyarrow ({error})",
            where="--predictions",
            hint="pip install 'costream[parquet]'",
        ) from error


class ParquetRows:
    """Rows of a Parquet file that appears when it is finished."""

    def __init__(self, path: Path) -> None:
        require_parquet()
        self._path = path
        self._writer: Any = None
        self._schema: Any = None
        self._columns: list[list[Any]] = []

    def open(self, columns: Iterable[str]) -> None:
        """Open the file; the type of a column follows from its name."""
        import pyarrow
        from pyarrow import parquet

        types = {"string": pyarrow.string(), "double": pyarrow.float64()}
        types |= {"int64": pyarrow.int64(), "bool": pyarrow.bool_()}
        fields = [pyarrow.field(name, types[_type(name)]) for name in columns]
        self._schema = pyarrow.schema(fields)
        self._columns = [[] for _ in fields]
        try:
            self._writer = parquet.ParquetWriter(str(part_path(self._path)), self._schema)
        except OSError as error:
            raise OutputError(f"cannot write ({error})", where=self._path) from error

    def add(self, values: Iterable[Any]) -> None:
        """Append a row."""
        for column, value in zip(self._columns, values, strict=True):
            # A name that is not UTF-8 contains lone surrogates, which Parquet cannot hold.
            text = isinstance(value, str) and not value.isascii()
            column.append(_utf8(value) if text else value)
        if len(self._columns[0]) >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> None:
        """Flush the file to disk and rename it to its final name."""
        self._flush()
        part = part_path(self._path)
        try:
            self._writer.close()
            with part.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(part, self._path)
        except OSError as error:
            raise OutputError(f"cannot write ({error})", where=self._path) from error

    def _flush(self) -> None:
        import pyarrow

        if not self._columns[0]:
            return
        arrays = [
            pyarrow.array(column, type=field.type)
            for column, field in zip(self._columns, self._schema, strict=True)
        ]
        try:
            self._writer.write_table(pyarrow.Table.from_arrays(arrays, schema=self._schema))
        except OSError as error:
            raise OutputError(f"cannot write ({error})", where=self._path) from error
        self._columns = [[] for _ in self._columns]


def _type(column: str) -> str:
    if column in _TYPES:
        return _TYPES[column]
    is_label = not column.startswith("p(") and "label" in column.split("_")
    return "string" if is_label or column in ("name", "model") else "double"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
