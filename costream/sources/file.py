"""Base class of the sources of files and pipes, and the choice of one by the first bytes."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from posixpath import basename, splitext
from typing import cast
from urllib.parse import unquote

from costream.core.errors import UsageError, display_name
from costream.core.records import Item, SourceInfo, SourceKind
from costream.core.registry import Entry
from costream.core.urls import path_of
from costream.sources.base import SOURCES, Source, SourceOptions
from costream.sources.media.decode_errors import DecodeErrors
from costream.sources.media.input_file import Readable
from costream.sources.media.remote import MEDIA_SUFFIXES, is_remote

READ_BYTES = 1 << 16
_LONGEST_NAME = 100  # characters, of a file on a web server
HEAD_BYTES = 1 << 16  # first bytes of a file, which decide what source reads it


class FileSource(ABC):
    """Source of a file, or of a pipe with the same content.

    Subclasses are registered by ``@source``; ``sniff`` says which data a class reads.
    """

    def __init__(
        self,
        uri: str,
        options: SourceOptions | None = None,
        *,
        file: Readable | None = None,
        head: bytes = b"",
    ) -> None:
        """``uri``: a file, a folder, or FILE#NAME.

        ``file``: read this instead; ``head``: its first bytes if it is a pipe, already read.
        """
        self._uri = uri
        self._where = display_name(uri)
        self._options = options or SourceOptions()
        self._file = file
        self._head = head
        self._damage = DecodeErrors()
        self._stopped = False
        self._prepare()

    @property
    def uri(self) -> str:
        """The file, the folder, or FILE#NAME."""
        return self._uri

    @property
    def options(self) -> SourceOptions:
        """The options of the source."""
        return self._options

    def _prepare(self) -> None:  # noqa: B027
        """Prepare for the options; raise ValueError if a required one is missing."""

    @staticmethod
    @abstractmethod
    def sniff(head: bytes, path: str | None, options: SourceOptions) -> bool:
        """Return whether this class reads data that begin with ``head``.

        ``path``: the file, or a folder (``head`` is empty then); None for a pipe.
        """

    @staticmethod
    def names(head: bytes, path: str) -> list[str]:
        """Return the names of the recordings in a file (FILE#NAME); empty for a single one."""
        return []

    @property
    def errors(self) -> int:
        """Number of errors found so far."""
        return self._damage.total

    @abstractmethod
    def open(self) -> SourceInfo:
        """Open the file; raises SourceError on failure."""

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """Yield the items."""

    def stop(self) -> None:
        """End ``items`` soon; safe in a signal handler."""
        self._stopped = True

    @abstractmethod
    def close(self) -> None:
        """Close the file. Items already yielded stay usable."""


def find_file_source(
    head: bytes, path: str | None, options: SourceOptions
) -> tuple[SourceKind, type[FileSource]] | None:
    """Return kind and class of the source that reads some data; None if there is none.

    The arguments are those of ``FileSource.sniff``.
    """
    for entry, source_class in file_sources():
        if source_class.sniff(head, path, options):
            return entry.info["kind"], source_class
    return None


def file_sources() -> Iterator[tuple[Entry[type[Source]], type[FileSource]]]:
    """Yield the declared sources of files in the order in which they are tried."""
    entries = (e for e in SOURCES.entries().values() if "address" not in e.info)
    for entry in sorted(entries, key=lambda entry: entry.info.get("order", 0)):
        yield entry, cast(type[FileSource], SOURCES.load(entry.name))


def require_rate(rate_hz: float | None, where: str, what: str = "its frames") -> float:
    """Return ``rate_hz``; raise UsageError unless it is a positive number."""
    if rate_hz is None or not (rate_hz > 0 and math.isfinite(rate_hz)):
        raise UsageError(f"{what} have no times", where=where, hint="give their rate: --fps")
    return rate_hz


def first_of(names: Iterable[str], count: int = 4) -> str:
    """Return the first names for a message: ``a, b, c, d, ...``."""
    names = list(names)
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


def read_all(file: Readable) -> bytes:
    """Return all remaining bytes."""
    return b"".join(iter(lambda: file.read(READ_BYTES), b""))


def file_name(uri: str) -> str:
    """Return the base name for output files; video names in a pickle may contain "/"."""
    path, mark, video = uri.partition("#") if not os.path.exists(uri) else (uri, "", "")
    name = os.path.basename(os.path.abspath(path) if os.path.isdir(path) else path)
    return display_name(name + mark + _safe_name(video))


def remote_name(uri: str) -> str | None:
    """Return the name of a media file on a web server; None if its URL does not end in one."""
    name = _safe_name(unquote(basename(path_of(uri)))) if is_remote(uri) else ""
    stem, suffix = splitext(name)
    if not stem or suffix.lower() not in MEDIA_SUFFIXES or len(name) > _LONGEST_NAME:
        return None
    return display_name(name)


def _safe_name(text: str) -> str:
    """Return ``text`` with ``_`` for each character that file names may not contain."""
    return "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in text)
