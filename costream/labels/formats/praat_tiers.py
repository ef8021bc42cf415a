"""Labels from Praat TextGrid files, in their long and short text form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from costream.core.errors import UsageError
from costream.labels.collector import LabelCollector, LabelTrack, NoLabelsError, read_text
from costream.labels.recording import Label

# Free-standing texts, numbers and flags; all else is a comment (Praat's manual, "TextGrid file
# formats"), also the numbers in brackets.
_VALUE = re.compile(
    r'"((?:[^"]|"")*)"|(?<![\w.\[-])(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.\]])', re.I
)
_INTERVALS = "IntervalTier"
_CHRONOLOGICAL = '"Praat chronological'  # a file in order of times, of all tiers


def read_textgrid(path: Path, collector: LabelCollector) -> Iterator[LabelTrack]:
    """Yield the intervals of all tiers as one timeline; empty ones are pauses.

    A part is a tier. Points are left out. Raises UsageError for a truncated file.
    """
    text = read_text(path)
    if text.lstrip()[:40].startswith(_CHRONOLOGICAL):
        yield _chronological(path, text, collector)
        return
    if "ooTextFile" not in text[:100] or "TextGrid" not in text[:200]:
        raise NoLabelsError("no Praat TextGrid in text form", where=path)
    # Kind of file, class of object, start, end, number of tiers; then the tiers.
    values = iter([b or a.replace('""', '"') for a, b in _VALUE.findall(text)])
    labels: list[Label] = []
    try:
        for _ in range(3):
            next(values)
        duration_s, tiers = float(next(values)), int(next(values))
        for _ in range(tiers):
            kind, name = next(values), next(values)
            _start, _end, count = next(values), next(values), int(next(values))
            is_wanted = collector.wants(name)
            for number in range(1, count + 1):
                times = [next(values) for _ in range(2 if kind == _INTERVALS else 1)]
                label, spot = next(values).strip(), f"tier {name!r}, interval {number}"
                if is_wanted and len(times) < 2:
                    collector.warn("points without length, left out", f"{path}, {spot}")
                elif is_wanted and label:
                    labels += collector.label(path, spot, times[0], times[1], label)
    except (StopIteration, ValueError) as error:
        raise UsageError(f"damaged or truncated TextGrid ({error!r:.60})", where=path) from error
    yield LabelTrack(path, (), tuple(labels), duration_s, has_parts=True)


def _chronological(path: Path, text: str, collector: LabelCollector) -> LabelTrack:
    """Return the intervals of a chronological file: number of the tier, start, end, text."""
    text = re.sub(r"^([^\"\n]*)!.*$", r"\1", text, flags=re.MULTILINE)  # comments
    values = iter([b or a.replace('""', '"') for a, b in _VALUE.findall(text)])
    labels: list[Label] = []
    try:
        next(values)
        _start, duration_s, tiers = next(values), float(next(values)), int(next(values))
        kinds = [[next(values) for _ in range(4)][:2] for _ in range(tiers)]
        for number in values:
            kind, name = kinds[int(number) - 1]
            times = [next(values) for _ in range(2 if kind == _INTERVALS else 1)]
            label, spot = next(values).strip(), f"tier {name!r}, at {times[0]}"
            if label and collector.wants(name):
                if len(times) < 2:
                    collector.warn("points without length, left out", f"{path}, {spot}")
                else:
                    labels += collector.label(path, spot, times[0], times[1], label)
    except (StopIteration, ValueError, IndexError) as error:
        raise UsageError(f"damaged or truncated TextGrid ({error!r:.60})", where=path) from error
    return LabelTrack(path, (), tuple(labels), duration_s, has_parts=True)
