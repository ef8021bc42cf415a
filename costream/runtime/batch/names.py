"""Unique result names that mirror the input tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from costream.runtime.batch.folders import PRIVATE
from costream.runtime.batch.tables import TABLES
from costream.sinks.registry import FORMATS

if TYPE_CHECKING:
    from costream.runtime.batch.inputs import Input

_SUFFIXES = tuple(suffix for format in FORMATS.values() for suffix in format.files)


class ResultNames:
    """Assigns each input a name under which its files, in any format, are unique.

    The name is the input's path below the root. Where its files would clash with those of another
    input, with a folder or with a table over all inputs, ``~2`` is appended.
    """

    def __init__(self) -> None:
        self._taken: set[str] = {*TABLES, PRIVATE}
        self._folders: set[str] = set()

    def give(self, inputs: Iterable[Input]) -> list[Input]:
        """Return the inputs in the same order, each with a unique name."""
        items = [replace(item, name=self._below_tables(item.name)) for item in inputs]
        self._folders = {folder for item in items for folder in _folders(item.name)}
        return [self._named(item) for item in items]

    def _below_tables(self, name: str) -> str:
        first, slash, rest = name.partition("/")
        return f"{first}~2{slash}{rest}" if slash and first in self._taken else name

    def _named(self, item: Input) -> Input:
        name, number = item.name, 1
        while any(f in self._taken or f in self._folders for f in _files(name)):
            number += 1
            name = f"{item.name}~{number}"
        if item.refusal is None:
            self._taken.update(_files(name))
        return replace(item, name=name)


def safe(part: str) -> str:
    """Return a part of a name with the characters replaced that file names must not have."""
    return "".join("_" if c in '/\\:*?"<>|' or not c.isprintable() else c for c in part)


def _folders(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: k + 1]) for k in range(len(parts))]


def _files(name: str) -> list[str]:
    return [f"{name}.{suffix}" for suffix in _SUFFIXES]
