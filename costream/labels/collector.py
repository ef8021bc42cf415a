"""Collection of labels and of their errors and warnings, common to all label readers."""

from __future__ import annotations

import codecs
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costream.core.clock import TOLERANCE_S, parse_time
from costream.core.errors import UsageError
from costream.core.spelling import composed, folded
from costream.labels.recording import Label, Recording

log = logging.getLogger("costream")
_SHOWN = 3  # places quoted in a message
_ERRORS_SHOWN = 10  # each has to be mended; a message is cut after some 2,000 characters
_AFTER_S = 1.0  # durations are rounded, and the last step of a model may extend beyond the end
_SUBSETS = {"training": "train", "testing": "test", "validation": "val"}


class NoLabelsError(UsageError):
    """The file does not contain labels."""


@dataclass(frozen=True)
class LabelTrack:
    """Labels of one recording in one file."""

    path: Path
    names: tuple[str, ...]  # of the recording, the most specific first; may be empty
    labels: tuple[Label, ...]
    duration_s: float | None = None  # of the recording, if the file contains it
    whole: bool = True
    group: str | None = None
    single: bool = True  # the file is about this recording only, and may be named after it
    has_parts: bool = False  # the file distinguishes parts


class LabelCollector:
    """Collects labels and problems, so that one run reports all errors.

    ``part``: the requested part of files with several (subsets of a data set, tiers, heads);
    None: all. ``columns``: headings of tables by role, and the frame rate "fps", which the user
    gives.
    """

    def __init__(self, part: str | None = None, columns: Mapping[str, str] | None = None) -> None:
        self.part = part
        self.columns = columns or {}
        self.unlabelled: list[Path] = []  # files without labels in a folder of label files
        self._parts: dict[str, None] = {}  # parts that were found, in order
        self._taken = False
        self._errors: list[tuple[Path, str]] = []
        self._lost: list[tuple[Path, str, str]] = []  # file, place and reason
        self._labelled: set[Path] = set()  # files with a valid label
        self._warnings: dict[str, list[str]] = {}

    def wants(self, part: str | None) -> bool:
        """Return whether a part is requested; None: data that belong to no part."""
        if part is None or self.part is None:
            return self.part is None
        self._parts[part] = None
        found, requested = folded(part), folded(self.part)
        is_wanted = _SUBSETS.get(found, found) == _SUBSETS.get(requested, requested)
        self._taken = self._taken or is_wanted
        return is_wanted

    def label(
        self,
        path: Path,
        spot: str,
        start: str | float,
        end: str | float | None,
        label: str,
        *,
        cut: bool = True,
    ) -> list[Label]:
        """Return a list of the label; empty for an invalid label, which is reported.

        ``spot``: its place in the file. Times are seconds or text; ``end`` None or "": the end of
        the recording. ``cut``: cut off a start before 0 s, as timelines of more than the recording
        have it, and leave out an annotation without a label; otherwise these are errors.
        """
        where = f"{path}, {spot}"
        label = composed(label.strip())
        try:
            start_s = seconds(start)
            end_s = None if end is None or end == "" else seconds(end)
        except ValueError as error:
            self.error(path, spot, str(error))
            return []
        if not label:
            (self.lose if cut else self.error)(path, spot, "no label")
        elif start_s < 0 and not cut:
            self.error(path, spot, f"the start ({start_s:g} s) is before the recording")
        elif end_s is not None and end_s < start_s:
            what = f"the end ({end_s:g} s) is not after the start ({start_s:g} s)"
            self.error(path, spot, what)
        elif end_s == start_s:
            self.warn("labels without length, left out", where)
        elif end_s is not None and end_s <= 0:
            self.warn("labels before 0 s, left out", where)
        else:
            self._labelled.add(path)
            return [Label(max(0.0, start_s), end_s, label, where)]
        return []

    def error(self, path: Path, spot: str, what: str) -> None:
        """Record an error in the labels; ``raise_errors`` raises it."""
        self._errors.append((path, f"{spot}: {what}"))

    def lose(self, path: Path, spot: str, reason: str) -> None:
        """Record an annotation that is left out; an error if its file has no valid one."""
        self._lost.append((path, spot, reason))

    def error_file(self, path: Path, error: UsageError) -> None:
        """Record that a file is unusable; ``raise_errors`` raises it."""
        text = str(error)
        for prefix in (f"{path}: ", f"{path}, "):
            text = text.removeprefix(prefix)
        self._errors.append((path, text))

    def warn(self, what: str, where: str) -> None:
        """Record a problem that can be ignored; ``raise_errors`` logs a warning."""
        self._warnings.setdefault(what, []).append(where)

    def raise_errors(self) -> None:
        """Log the warnings; raise UsageError for errors or if the requested part is missing."""
        for path, spot, reason in self._lost:
            if path in self._labelled:
                self.warn(f"annotations left out ({reason})", f"{path}, {spot}")
            else:
                self.error(path, spot, reason)
        self._lost.clear()
        for what, places in self._warnings.items():
            log.warning("%s: %s", what, abbreviate(places, "; "))
        self._warnings.clear()
        if self.unlabelled:
            log.warning("no labels in %s", abbreviate([str(path) for path in self.unlabelled]))
        if self._errors:
            files = {path for path, _ in self._errors}
            if len(files) == 1:
                raise UsageError(listed_errors([e for _, e in self._errors]), where=files.pop())
            raise UsageError(listed_errors([f"{path}: {what}" for path, what in self._errors]))
        if self.part is not None and not self._taken:
            raise UsageError(
                f"the labels have no part {self.part!r}",
                hint=f"its parts: {', '.join(map(repr, self._parts))}" if self._parts else None,
            )


def seconds(value: str | float) -> float:
    """Return a time in seconds; text may have a decimal comma or be HH:MM:SS, else ValueError."""
    try:
        time_s = float(value.replace(",", ".") if isinstance(value, str) else value)
    except ValueError:
        try:
            time_s = parse_time(str(value).replace(",", "."))
        except UsageError:
            raise ValueError(f"not a time: {value!r}") from None
    if not math.isfinite(time_s):
        raise ValueError(f"not a time: {value!r:.40}")
    return time_s


def abbreviate(items: Sequence[str], separator: str = ", ") -> str:
    """Return the first items and the number of the others as text."""
    return shortened(items, _SHOWN, " (and {} more)", separator)


def listed_errors(errors: Sequence[str]) -> str:
    """Return the texts of errors that are all reported at once as one line."""
    return shortened(errors, _ERRORS_SHOWN, " (and {} more)", "; ")


def shortened(
    items: Sequence[str], most: int, more: str = " and {} more", separator: str = ", "
) -> str:
    """Return at most ``most`` items as text; ``more``: text for the number of the others."""
    rest = more.format(len(items) - most) if len(items) > most else ""
    return separator.join(items[:most]) + rest


def checked(recording: Recording, collector: LabelCollector, end_s: float | None) -> Recording:
    """Return the recording with its real duration and without labels after its end.

    ``end_s``: its real end, None if unknown. A label that extends far beyond the end is cut off
    there. Overlapping labels are kept and reported.
    """
    after = float("inf") if end_s is None else end_s
    labels: list[Label] = []
    latest_s = 0.0  # the end of the labels so far
    for label in recording.labels:
        if label.start_s >= after:
            collector.warn("labels after the end of the recording, left out", label.where)
            continue
        if label.start_s < latest_s - TOLERANCE_S:
            collector.warn("labels that overlap another", label.where)
        if label.end_s is not None and label.end_s > after + _AFTER_S:
            collector.warn(
                "labels that reach beyond the end of the recording, cut off", label.where
            )
            label = replace(label, end_s=after)
        latest_s = max(latest_s, float("inf") if label.end_s is None else label.end_s)
        labels.append(label)
    duration_s = recording.duration_s if end_s is None else end_s
    return replace(recording, labels=tuple(labels), duration_s=duration_s)


def read_text(path: Path) -> str:
    r"""Return a UTF-8 or UTF-16 text with \n line endings and without a byte order mark.

    Raises UsageError when it cannot be read or has another encoding.
    """
    try:
        data = path.read_bytes()
        text = data.decode(_encoding(data))
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
    except UnicodeDecodeError as error:
        what, hint = "is not text in UTF-8", "save it as UTF-8"
        if b"\0" in data:  # as in media, and in no text of one byte a character
            what = "is a recording or other data, not a text with labels"
            hint = "name the labels of a recording with --labels FILE"
        raise UsageError(what, where=path, hint=hint) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def integer(text: str) -> int:
    """Return an integer of JSON; ValueError for more than 64 bits."""
    number = int(text)
    if abs(number) >= 1 << 63:
        raise ValueError(f"a number of more than 64 bits: {text:.20}...")
    return number


def _encoding(data: bytes) -> str:
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # Without a byte order mark: the text begins in ASCII, so every other byte is zero.
    if data[1:2] == b"\0":
        return "utf-16-le"
    return "utf-16-be" if data[:1] == b"\0" else "utf-8"
