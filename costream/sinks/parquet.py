"""Tables as Parquet files, written with pyarrow (extra ``parquet``)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.sinks.atomic import BinaryFile

_GROUP_ROWS = 1 << 16  # rows buffered in memory before they are written
_TYPES = {
    **dict.fromkeys(("i", "frame", "pts", "id", "person"), "int64"),
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
        self._file = BinaryFile(path, overwrite=True)
        self._writer: Any = None
        self._columns: list[list[Any]] = []

    def open(self, columns: Iterable[str]) -> None:
        """Open the file; the type of a column follows from its name."""
        import pyarrow
        from pyarrow import parquet

        types = {"string": pyarrow.string(), "double": pyarrow.float64()}
        types |= {"int64": pyarrow.int64(), "bool": pyarrow.bool_()}
        fields = [pyarrow.field(name, types[_type(name)]) for name in columns]
        self._columns = [[] for _ in fields]
        self._file.open()
        make = partial(parquet.ParquetWriter, self._file.file, pyarrow.schema(fields))
        self._writer = self._file.attempt(make)

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
        self._file.attempt(self._writer.close)
        self._file.finish()

    def _flush(self) -> None:
        import pyarrow

        if not self._columns[0]:
            return
        schema = self._writer.schema
        arrays = [
            pyarrow.array(column, type=field.type)
            for column, field in zip(self._columns, schema, strict=True)
        ]
        table = pyarrow.Table.from_arrays(arrays, schema=schema)
        self._file.attempt(partial(self._writer.write_table, table))
        self._columns = [[] for _ in self._columns]


def _type(column: str) -> str:
    if column in _TYPES:
        return _TYPES[column]
    is_label = not column.startswith("p(") and "label" in column.split("_")
    return "string" if is_label or column in ("name", "model") else "double"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
