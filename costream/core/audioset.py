"""Kinds of sounds: what in the AudioSet ontology is a kind of what."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from costream.core.spelling import folded

FILE = Path(__file__).with_name("audioset_kinds.txt")


def kinds_among(labels: Collection[str]) -> Mapping[str, frozenset[str]]:
    """Return the kinds of AudioSet by name, each with the labels that belong to it.

    Names are in small letters. A kind that is a label is of itself. Empty unless all labels are
    in the ontology.
    """
    members = _members()
    if not set(labels) <= members.keys():
        return {}
    return {kind: found for kind in members if (found := members[kind] & set(labels))}


def is_kind(name: str) -> bool:
    """Return whether a name, in small letters, is that of a kind of AudioSet with parts."""
    return len(_members().get(name, ())) > 1


@cache
def _members() -> dict[str, frozenset[str]]:
    """Return of each name in the ontology all that is of it, itself included."""
    children: dict[str, list[str]] = {}
    for line in folded(FILE.read_text(encoding="utf-8")).splitlines():
        kind, mark, parts = line.partition(": ")
        if mark and not line.startswith("#"):
            children[kind] = parts.split("; ")

    def below(name: str) -> frozenset[str]:
        return frozenset([name]).union(*map(below, children.get(name, ())))

    names = children.keys() | {name for parts in children.values() for name in parts}
    return {name: below(name) for name in names}
