"""Copies of a recording among labelled examples."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from costream.labels.collector import abbreviate
from costream.labels.examples import Example

log = logging.getLogger("costream")


def join_copies(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with the same group for all copies of a recording.

    Copies are links to one file, and files of equal content. With one group they are on the same
    side of a split. A warning names them.
    """
    copies = find_copies(dict.fromkeys(e.source for e in examples))
    if not copies:
        return list(examples)
    named = [" = ".join(sources) for sources in copies]
    log.warning("the same recording more than once: %s", abbreviate(named))
    groups: dict[str, list[str]] = {}
    for example in examples:
        groups.setdefault(example.source, []).append(example.group)
    joined = join_groups(
        [group for source in sources for group in groups[source]] for sources in copies
    )
    return [
        replace(example, group=joined.get(example.group, example.group)) for example in examples
    ]


def join_groups(alike: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return the joined group of every group, for lists of groups that belong together."""
    first: dict[str, str] = {}  # of each group, the one that it is joined with, or itself

    def find(group: str) -> str:
        while first.setdefault(group, group) != group:
            group = first[group]
        return group

    for groups in alike:
        for group in groups[1:]:
            first[find(group)] = find(groups[0])
        find(groups[0])
    return {group: find(group) for group in first}


def find_copies(sources: Iterable[str]) -> list[list[str]]:
    """Return the sources that are copies of each other, in lists of two or more."""
    of_content: dict[bytes, list[str]] = {}
    for source in _of_equal_size(sources):
        of_content.setdefault(_digest(source), []).append(source)
    return [alike for alike in of_content.values() if len(alike) > 1]


def _of_equal_size(sources: Iterable[str]) -> list[str]:
    """Return the files among the sources that are as large as another."""
    by_size: dict[int, list[str]] = {}
    for source in sources:
        if os.path.isfile(source):
            by_size.setdefault(os.path.getsize(source), []).append(source)
    return [source for alike in by_size.values() if len(alike) > 1 for source in alike]


def _digest(source: str) -> bytes:
    """Return the digest of a file, or its name if it cannot be read: reading it reports why."""
    digest = hashlib.sha256()
    try:
        with open(source, "rb") as file:
            for part in iter(partial(file.read, 1 << 20), b""):
                digest.update(part)
    except OSError:
        return os.fsencode(source)
    return digest.digest()
