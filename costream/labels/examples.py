"""Labelled examples for training and evaluation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costream.core.errors import SourceError, UsageError
from costream.core.spelling import folded
from costream.labels.collector import abbreviate
from costream.labels.recording import BACKGROUNDS, Recording

log = logging.getLogger("costream")


@dataclass(frozen=True)
class Example:
    """A stretch of a source that belongs to one class."""

    source: str  # as on the command line; of text the line itself
    label: str
    start_s: float
    end_s: float | None  # None: to the end of the source
    group: str  # unit that a split keeps together; default: the file
    where: str  # table and line, or file, for messages


def to_examples(recordings: Iterable[Recording], background: str | None) -> list[Example]:
    """Return every labelled stretch, in the order of the recordings.

    If a recording is labelled completely and ``background`` is not None, time without a label
    becomes examples of it, except slivers and, if the duration of the recording is unknown, the
    time after the last label. Without ``background`` that time is left out with a warning.
    """
    examples: list[Example] = []
    left_out: list[str] = []
    for recording in recordings:
        source, group = recording.source, recording.group
        found = [
            Example(source, label.label, label.start_s, label.end_s, group, label.where)
            for label in recording.labels
        ]
        if recording.whole and background is None:
            times = recording.unlabelled()
            left_out += [f"{source} from {begin:g} to {end:g} s" for begin, end in times]
        elif recording.whole and background is not None:
            found += [
                Example(source, background, start_s, end_s, group, source)
                for start_s, end_s in recording.unlabelled()
            ]
        examples += sorted(found, key=lambda example: example.start_s)
    if left_out:
        log.warning(
            "unlabelled time left out, as there is no background class: %s", abbreviate(left_out)
        )
    return examples


def fit_labels(
    examples: Sequence[Example], names: Sequence[str], background: str | None = None
) -> list[Example]:
    """Return the examples with their labels spelled as in ``names``; see ``name_matcher``.

    Raises UsageError for labels that match none of the names.
    """
    match = name_matcher(names, background)
    fitted = _fitted(((example.label, example.where) for example in examples), match)
    return [replace(example, label=fitted[example.label]) for example in examples]


def _fitted(found: Iterable[tuple[str, str]], match: Callable[[str], str | None]) -> dict[str, str]:
    """Return the name of each label; UsageError with the place of an unknown one."""
    fitted: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for label, where in found:
        name = match(label)
        if name is None:
            unknown.setdefault(label, where)
        else:
            fitted[label] = name
    if unknown:
        labels = sorted(unknown)
        raise UsageError(
            f"the model has no label {', '.join(map(repr, labels[:5]))}",
            where=next(iter(unknown.values())),
            hint="'costream models show NAME' lists its labels",
        )
    return fitted


def name_matcher(
    names: Sequence[str], background: str | None = None
) -> Callable[[str], str | None]:
    """Return a function that maps a label to the equal or equally spelled one of ``names``.

    An exact match takes precedence; otherwise case and the word separator (space, "_" or "-") are
    ignored. BACKGROUNDS that are not among the names map to the ``background``, if there is one.
    """
    by_spelling = {} if background is None else dict.fromkeys(BACKGROUNDS, background)
    by_spelling |= {normalise_label(name): name for name in reversed(names)}
    return lambda label: label if label in names else by_spelling.get(normalise_label(label))


def located(error: SourceError, example: Example) -> SourceError:
    """Return the error with the place of the example: its line in the table, or its file."""
    text = str(error)
    return error if text.startswith(example.where) else SourceError(text, where=example.where)


def normalise_label(label: str) -> str:
    """Return a label normalised for comparison: lower case, words separated by single spaces."""
    return " ".join(folded(label).replace("_", " ").replace("-", " ").split())


def split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Return training and validation examples, with no group on both sides.

    Groups are drawn until every class has about ``share`` of its examples in validation; each
    class keeps at least one for training. A class with a single group is only used for training.
    """
    left = Counter(e.label for e in examples)
    wanted = {label: share * count for label, count in left.items()}
    held: set[str] = set()
    groups = sorted({e.group for e in examples})
    for k in np.random.default_rng(seed).permutation(len(groups)):
        counts = Counter(e.label for e in examples if e.group == groups[k])
        fits = all(left[label] > count for label, count in counts.items())
        # Half an example too many is as far from the share as half an example too few.
        if fits and any(wanted[label] >= count / 2 for label, count in counts.items()):
            held.add(groups[k])
            for label, count in counts.items():
                left[label] -= count
                wanted[label] -= count
    train = [e for e in examples if e.group not in held]
    return train, [e for e in examples if e.group in held]
