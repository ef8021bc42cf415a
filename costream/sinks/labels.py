"""Timeline as labels for annotation tools (Audacity, Raven Pro) and scoring tools (RTTM)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import PurePath

from costream.core.formatting import named
from costream.core.records import Header, Record, Segment
from costream.sinks.atomic import TextOutput
from costream.sinks.base import TextSink, output_file

# A selection spans the whole frequency range: audio models use 16 000 samples a second.
_LOW_HZ, _HIGH_HZ = "0.0", "8000.0"

_NOTHING = "<NA>"  # a missing value in RTTM

RAVEN_COLUMNS = (
    *("Selection", "View", "Channel", "Begin File", "Begin Time (s)", "End Time (s)"),
    *("Low Freq (Hz)", "High Freq (Hz)", "Label", "Score"),
)


@output_file(
    "audacity.txt", format="audacity", about="timeline as an Audacity label track", order=6
)
class Audacity(TextSink):
    """Audacity: tab-separated start, end (seconds) and label, for File > Import > Labels."""

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if isinstance(record, Segment):
            line = f"{record.start_s:.6f}\t{record.end_s:.6f}\t{one_line(named(record))}\n"
            self._out.write(line, flush=True)


@output_file("raven.txt", format="raven", about="timeline as a Raven Pro selection table", order=7)
class Raven(TextSink):
    """A selection table of Raven Pro: RAVEN_COLUMNS, tab-separated, one row per segment.

    With several heads a column ``Model`` names the head of a segment.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._source = ""
        self._channel = 1
        self._has_heads = False
        self._rows = 0

    def open(self, header: Header) -> None:
        """Write the column names."""
        self._source, self._channel = source_name(header), channel(header)
        self._has_heads = header.heads is not None
        super().open(header)
        self._row([*RAVEN_COLUMNS, *(["Model"] if self._has_heads else [])])

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if not isinstance(record, Segment):
            return
        self._rows += 1
        score = f"{record.score:.6f}" if math.isfinite(record.score) else ""
        self._row(
            [
                *(str(self._rows), "Spectrogram 1", str(self._channel), self._source),
                *(f"{record.start_s:.6f}", f"{record.end_s:.6f}", _LOW_HZ, _HIGH_HZ),
                *(named(record), score),
                *([record.model or ""] if self._has_heads else []),
            ]
        )

    def _row(self, cells: Iterable[str]) -> None:
        self._out.write("\t".join(map(one_line, cells)) + "\n", flush=True)


@output_file("rttm", about="timeline as NIST RTTM", joins=True, order=8)
class Rttm(TextSink):
    """Rich Transcription Time Marked (NIST): a SPEAKER line of ten fields per segment.

    The source is named without folder and extension, as scoring tools expect. Spaces separate
    the fields, so those in names become underscores.
    """

    def __init__(self, out: TextOutput) -> None:
        super().__init__(out)
        self._file = ""
        self._channel = 1

    def open(self, header: Header) -> None:
        """Open the output; the format has no header."""
        self._file = _field(PurePath(source_name(header)).stem)
        self._channel = channel(header)
        super().open(header)

    def write(self, record: Record) -> None:
        """Write a segment; other records are ignored."""
        if not isinstance(record, Segment):
            return
        when = f"{record.start_s:.6f} {record.end_s - record.start_s:.6f}"
        score = f"{record.score:.6f}" if math.isfinite(record.score) else _NOTHING
        name = f"{_NOTHING} {_NOTHING} {_field(named(record))} {score} {_NOTHING}"
        self._out.write(f"SPEAKER {self._file} {self._channel} {when} {name}\n", flush=True)


def _field(text: str) -> str:
    return "_".join(text.split()) or _NOTHING


def one_line(text: str) -> str:
    """Return ``text`` without tabs, line breaks and repeated spaces."""
    return " ".join(text.split())


def source_name(header: Header) -> str:
    """Return the name of the source without its folder."""
    return PurePath(header.source).name or header.source


def channel(header: Header) -> int:
    """Return the channel that was used, 1 for the mean of all."""
    number = header.options.get("channel")
    return number if isinstance(number, int) else 1
