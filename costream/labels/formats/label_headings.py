"""Headings of label tables: those that annotation tools write, and those that ``--columns`` names.

Known are the tables of costream, BORIS, BirdNET, DCASE and DESED (sed_eval), EPIC-Kitchens, ELAN,
and usual headings of times in seconds, milliseconds and frames.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costream.core.errors import UsageError

ROLES = ("file", "start", "end", "label", "fps")
FILE = "file"  # heading of the recording in user tables, where unlabelled time is unknown
# Heading -> seconds in its unit; 0: frames. In order of preference.
_STARTS = {
    **dict.fromkeys(("start_s", "start", "start (s)", "onset", "begin", "begin time (s)"), 1.0),
    **dict.fromkeys(("start_time", "start time", "start_timestamp", "start_sec", "begin_s"), 1.0),
    **dict.fromkeys(("begin time - hh:mm:ss.ms", "begin time - ss.msec", "onset_s"), 1.0),
    **dict.fromkeys(("start_ms", "begin_ms", "onset_ms", "begin time - msec"), 1e-3),
    **dict.fromkeys(("start_frame", "begin_frame", "start frame", "image index start"), 0.0),
}
_ENDS = {
    **dict.fromkeys(("end_s", "end", "end (s)", "stop (s)", "stop", "offset", "end time (s)"), 1.0),
    **dict.fromkeys(("end_time", "end time", "stop_time", "end_timestamp", "stop_timestamp"), 1.0),
    **dict.fromkeys(("end_sec", "stop_s", "offset_s"), 1.0),
    **dict.fromkeys(("end time - hh:mm:ss.ms", "end time - ss.msec"), 1.0),
    **dict.fromkeys(("end_ms", "stop_ms", "offset_ms", "end time - msec"), 1e-3),
    **dict.fromkeys(("end_frame", "stop_frame", "end frame", "image index stop"), 0.0),
}
_LABELS = ("label", "event_label", "behavior", "behaviour", "common name", "verb", "narration")
_FILES = (
    FILE,
    "name",
    "filename",
    "media file name",
    "media file path",
    "video_id",
    "video",
    "source",
)
_RATES = ("fps", "fps (frame/s)")
KNOWN = {*_LABELS, *_FILES, *_STARTS, *_ENDS}


@dataclass(frozen=True)
class LabelHeadings:
    """The columns of a label table, in lower case; empty for one that the table does not have."""

    file: str
    start: str
    end: str
    label: str
    fps: str  # heading, or the number that ``--columns fps=`` gives
    units: tuple[float, float]  # seconds in the units of start and end; 0: frames

    @property
    def used(self) -> set[str]:
        """The headings of all columns that are read."""
        return {self.file, self.start, self.end, self.label, self.fps}


def split_columns(text: str | None) -> tuple[dict[str, str], str | None]:
    """Split ``--columns`` into columns of label tables by role, and the rest: of joint tables.

    Raises UsageError for a role of labels without a heading, or given twice.
    """
    labels: dict[str, str] = {}
    rest: list[str] = []
    for part in text.split(",") if text else ():
        role, equals, heading = (piece.strip() for piece in part.partition("="))
        if role not in ROLES:
            rest.append(part)
        elif not equals or not heading:
            hint = "write start='Start (s)',end='Stop (s)',label=Behavior"
            raise UsageError(f"--columns: {role} without a heading", hint=hint)
        elif role in labels:
            raise UsageError(f"--columns names {role} twice")
        else:
            labels[role] = heading
    return labels, ",".join(rest) or None


def find_headings(names: Sequence[str], columns: Mapping[str, str], where: str) -> LabelHeadings:
    """Return the columns of a table with the headings ``names``, in lower case.

    ``columns``: headings by role from the user, which take precedence. Raises UsageError if the
    table does not have one of them.
    """
    given = {role: heading.lower() for role, heading in columns.items()}
    lacking = [h for role, h in given.items() if h not in names and not _is_rate(role, h)]
    if lacking:
        raise UsageError(
            f"the table has no column {', '.join(map(repr, lacking))}; its columns are"
            f" {', '.join(names):.300}",
            where=where,
            hint="check the headings of --columns",
        )
    # In a table of events other than BORIS, "source" may be anything.
    files = _FILES if "behavior" in names else _FILES[:-1]
    start = given.get("start") or _first(_STARTS, names)
    end = given.get("end") or _first(_ENDS, names)
    return LabelHeadings(
        file=given.get("file") or _first(files, names),
        start=start,
        end=end,
        label=given.get("label") or _first(_LABELS, names),
        fps=given.get("fps") or _first(_RATES, names),
        units=(_unit(start, _STARTS), _unit(end, _ENDS)),
    )


def _unit(heading: str, known: Mapping[str, float]) -> float:
    """Return the seconds in the unit of a column of times; 0 for frames."""
    if heading in known:
        return known[heading]
    if "frame" in heading:
        return 0.0
    return 1e-3 if heading.endswith(("_ms", "(ms)", "msec")) else 1.0


def _first(known: Iterable[str], names: Sequence[str]) -> str:
    return next((name for name in known if name in names), "")


def given_rate_hz(columns: Mapping[str, str], where: str) -> float:
    """Return the frame rate of ``--columns fps=``; UsageError without it."""
    rate_hz = rate_of(columns.get("fps", ""))
    if rate_hz is None:
        hint = "give it: --columns fps=25"
        raise UsageError("frames of an unknown rate", where=where, hint=hint)
    return rate_hz


def _is_rate(role: str, text: str) -> bool:
    return role == "fps" and rate_of(text) is not None


def rate_of(text: str) -> float | None:
    """Return the frame rate that a text is, in Hz; None if it is not a number above 0."""
    try:
        rate_hz = float(text.replace(",", "."))
    except ValueError:
        return None
    return rate_hz if 0 < rate_hz < float("inf") else None
