"""Labelled examples: what a model learns from, or is measured on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costream.errors import SourceError, UsageError
from costream.labels.intake import some
from costream.labels.recording import Recording

log = logging.getLogger("costream")


@dataclass(frozen=True)
class Example:
    """A stretch of a source that shows, or sounds like, one class."""

    source: str  # as on the command line
    label: str
    start_s: float
    end_s: float | None  # None: to the end of the source
    group: str  # what may never be on both sides of a split; default: the file
    where: str  # table and line, or file, for messages


def to_examples(recordings: Iterable[Recording], background: str | None) -> list[Example]:
    """Give every labelled stretch, in the order of the recordings.

    Where a recording is labelled as a whole and ``background`` is not None, the time without a
    label is given as examples of that; but for slivers, and for the time after the last label
    where the length of the recording is not known. Without ``background`` that time is left out,
    and a warning says so.
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
        log.warning("time without a label, and no class for it, left out: %s", some(left_out))
    return examples


def fit_labels(examples: Sequence[Example], names: Sequence[str]) -> list[Example]:
    """Give the examples with their labels as ``names`` spell them.

    Case, and whether words are joined by a blank, "_" or "-", make no difference where a label is
    not among the names as it is. UsageError for labels that are none of them.
    """
    fitted = _fitted(((example.label, example.where) for example in examples), names)
    return [replace(example, label=fitted[example.label]) for example in examples]


def _fitted(found: Iterable[tuple[str, str]], names: Sequence[str]) -> dict[str, str]:
    """Give the name for each label; UsageError that says where unknown ones stand."""
    called = respelled(names)
    fitted: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for label, where in found:
        name = called(label)
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


def respelled(names: Sequence[str]) -> Callable[[str], str | None]:
    """Give what tells which of ``names`` a label is, itself or as ``spelling`` has it; or None."""
    alike = {spelling(name): name for name in reversed(names)}
    return lambda label: label if label in names else alike.get(spelling(label))


def located(error: SourceError, example: Example) -> SourceError:
    """Give an error of a source that names the example: its line in the table, or its file."""
    told = str(error)
    return error if told.startswith(example.where) else SourceError(told, where=example.where)


def spelling(label: str) -> str:
    """Give a label as it is compared: lower case, words apart by blanks."""
    return " ".join(label.casefold().replace("_", " ").replace("-", " ").split())


def split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """Give the examples to train on and those to validate with, no group on both sides.

    Groups are drawn until every class has about ``share`` of its examples in validation; each
    keeps at least one to train on. A class of a single group is trained on only.
    """
    left = Counter(e.label for e in examples)
    wanted = {label: share * count for label, count in left.items()}
    held: set[str] = set()
    groups = sorted({e.group for e in examples})
    for k in np.random.default_rng(seed).permutation(len(groups)):
        counts = Counter(e.label for e in examples if e.group == groups[k])
        fits = all(left[label] > count for label, count in counts.items())
        # Half of an example too many is as far from the share as half of one too few.
        if fits and any(wanted[label] >= count / 2 for label, count in counts.items()):
            held.add(groups[k])
            for label, count in counts.items():
                left[label] -= count
                wanted[label] -= count
    train = [e for e in examples if e.group not in held]
    return train, [e for e in examples if e.group in held]
