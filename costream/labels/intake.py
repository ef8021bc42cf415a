"""What every reader of labels hands in: the labels, and what is wrong with them."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path

from costream.clock import parse_time
from costream.errors import UsageError
from costream.labels.recording import Label

log = logging.getLogger("costream")

_SHOWN = 3  # places that a message quotes
_SUBSETS = {"training": "train", "testing": "test", "validation": "val"}


class NoLabelsError(UsageError):
    """The file is something else than labels."""


@dataclass(frozen=True)
class Track:
    """What a file says of one recording."""

    path: Path
    names: tuple[str, ...]  # what it calls the recording, the most telling first; it may not
    labels: tuple[Label, ...]
    duration_s: float | None = None  # of the recording, where the file says it
    whole: bool = True
    group: str | None = None
    alone: bool = True  # the file tells of this recording only, and may be named after it
    parted: bool = False  # the file says what is of which part


class Intake:
    """Takes what readers find, so that one run tells all that is wrong.

    ``part``: the only one that is wanted of files with several (subsets of a data set, tiers,
    heads); None: all.
    """

    def __init__(self, part: str | None = None) -> None:
        self.part = part
        self.passed_by: list[Path] = []  # files without labels, in a folder of such
        self._parts: dict[str, None] = {}  # those that were there, in their order
        self._taken = False
        self._wrong: list[tuple[Path, str]] = []
        self._odd: dict[str, list[str]] = {}

    def wants(self, part: str | None) -> bool:
        """Say whether a part is wanted; None: something that is of no part."""
        if part is None or self.part is None:
            return self.part is None
        self._parts[part] = None
        told, asked = part.casefold(), self.part.casefold()
        wanted = _SUBSETS.get(told, told) == _SUBSETS.get(asked, asked)
        self._taken = self._taken or wanted
        return wanted

    def label(
        self, path: Path, spot: str, start: str | float, end: str | float | None, label: str
    ) -> list[Label]:
        """Give the label, none where there is something wrong with it, which is noted.

        ``spot`` is its place in the file. Times are seconds or text that means such; ``end`` None
        or "": to the end of the recording.
        """
        where = f"{path}, {spot}"
        label = label.strip()
        try:
            start_s = seconds(start)
            end_s = None if end is None or end == "" else seconds(end)
        except ValueError as error:
            self.wrong(path, spot, str(error))
            return []
        if not label:
            self.wrong(path, spot, "no label")
        elif end_s is not None and end_s < start_s:
            what = f"the end ({end_s:g} s) is not after the start ({start_s:g} s)"
            self.wrong(path, spot, what)
        elif end_s == start_s:
            self.odd("labels without length, left out", where)
        elif end_s is not None and end_s <= 0:
            self.odd("labels before 0 s, left out", where)
        else:
            return [Label(max(0.0, start_s), end_s, label, where)]
        return []

    def wrong(self, path: Path, spot: str, what: str) -> None:
        """Note what makes the labels unusable; ``settle`` tells it."""
        self._wrong.append((path, f"{spot}: {what}"))

    def refused(self, path: Path, error: UsageError) -> None:
        """Note that a whole file is unusable; ``settle`` tells it."""
        told = str(error)
        for prefix in (f"{path}: ", f"{path}, "):
            told = told.removeprefix(prefix)
        self._wrong.append((path, told))

    def odd(self, what: str, where: str) -> None:
        """Note what can be passed over; ``settle`` warns of it."""
        self._odd.setdefault(what, []).append(where)

    def settle(self) -> None:
        """Warn of what was odd; UsageError for what is wrong, or where the part is not there."""
        for what, places in self._odd.items():
            log.warning("%s: %s", what, some(places, "; "))
        self._odd.clear()
        if self.passed_by:
            log.warning("no labels in %s", some([str(path) for path in self.passed_by]))
        if self._wrong:
            files = {path for path, _ in self._wrong}
            if len(files) == 1:
                raise UsageError(some([what for _, what in self._wrong], "; "), where=files.pop())
            raise UsageError(some([f"{path}: {what}" for path, what in self._wrong], "; "))
        if self.part is not None and not self._taken:
            raise UsageError(
                f"there is no part {self.part!r} in the labels",
                hint=f"there are {', '.join(map(repr, self._parts))}" if self._parts else None,
            )


def seconds(value: str | float) -> float:
    """Give a time in seconds; text may have a decimal comma, or be HH:MM:SS. ValueError else."""
    try:
        time_s = float(value.replace(",", ".") if isinstance(value, str) else value)
    except ValueError:
        try:
            time_s = parse_time(str(value).replace(",", "."))
        except UsageError:
            raise ValueError(f"not a time: {value!r}") from None
    if not math.isfinite(time_s):
        raise ValueError(f"not a time: {value!r}")
    return time_s


def some(items: list[str], separator: str = ", ") -> str:
    """Give the first of many, and how many more there are."""
    more = f" (and {len(items) - _SHOWN} more)" if len(items) > _SHOWN else ""
    return separator.join(items[:_SHOWN]) + more
