"""Interfaces of sinks, which receive the records of a run, and the declaration of their files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from costream.core.records import Header, Picture, Record, Summary
from costream.core.registry import Registry
from costream.sinks.atomic import TextOutput


class Sink(Protocol):
    """Receiver of the records of one run over one source: ``open``, ``write`` ..., ``close``.

    ``close`` is always called once after a successful ``open``, also when the run was
    interrupted (``summary.complete`` is then False), and leaves valid, finished files.
    """

    def open(self, header: Header) -> None: ...  # noqa: D102

    def write(self, record: Record) -> None: ...  # noqa: D102

    def close(self, summary: Summary) -> None: ...  # noqa: D102


@runtime_checkable
class PictureSink(Sink, Protocol):
    """A sink that also takes pictures: ``draw`` is called after the records of a step."""

    def draw(self, picture: Picture) -> None: ...  # noqa: D102


class TextSink:
    """Base of the sinks that write text; it writes none."""

    def __init__(self, out: TextOutput) -> None:
        """``out``: not opened yet, and not used by another sink."""
        self._out = out

    def open(self, header: Header) -> None:
        """Open the output."""
        self._out.open()

    def write(self, record: Record) -> None:
        """Ignore a record."""

    def close(self, summary: Summary) -> None:
        """Finish the output."""
        self._out.finish()


# Suffix of a file -> sink factory, called with an output. Keywords of ``@output_file``:
# format: name of the format with this file; default: the suffix
# about: description of the format, at its first file
# has_summary: the last 64 KiB of the file hold the summary record
# binary: the output is a BinaryFile; no standard output
# draws: width, height that frames are fitted into
# joins: files of several sources may follow one another in one stream, and are read as one;
#     "named": each line, which is written in one piece, begins with its source
# objects: written only for runs that find objects (True), or only for others (False)
# order: place of the format in lists
OUTPUT_FILES = Registry[Callable[[Any], Sink]]("costream.sinks", "output_file")
output_file = OUTPUT_FILES.register
