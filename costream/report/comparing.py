"""``costream report --diff``: pairs of results, compared and printed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import click

from costream.errors import ExitCode, SourceError, UsageError
from costream.report.diff import Comparison, compare_runs
from costream.report.difftext import describe, total
from costream.report.finding import ResultFile, find_results
from costream.results.reader import NotAResultError, runs
from costream.sinks.jsonl import dumps
from costream.sources.media.container import display_name


@dataclass(frozen=True)
class _Pairs:
    """Results that exist on both sides, and on one side only."""

    both: list[tuple[str, Path, Path]]
    only_a: list[str]
    only_b: list[str]


def compare(a: Path, b: Path, *, as_json: bool) -> ExitCode:
    """Print the differences between the results in ``a`` and ``b``, two files or two folders.

    Return OK whether they differ or not, PARTIAL if some cannot be read. Raise SourceError if
    there are none, UsageError for a file and a folder.
    """
    if a.is_dir() != b.is_dir() and a.exists() and b.exists():
        raise UsageError("compares two files or two folders, not one of each", where="--diff")
    pairs = _pair(a, b)
    out = _JsonOut(a, b) if as_json else _TextOut(a, b)
    compared, failures = 0, []
    out.begin()
    for name, path_a, path_b in pairs.both:
        try:
            for found in _compare(name, path_a, path_b):
                out.add(found)
                compared += 1
        except NotAResultError as error:
            click.echo(f"costream: skipped: {error}", err=True)
        except SourceError as error:
            click.echo(f"costream: {error}", err=True)
            failures.append(error)
    out.end(pairs.only_a, pairs.only_b)
    if failures and not compared:
        return failures[0].exit_code
    return ExitCode.PARTIAL if failures else ExitCode.OK


def _pair(a: Path, b: Path) -> _Pairs:
    found_a, found_b = find_results(a), find_results(b)
    if not a.is_dir():
        return _Pairs([(found_a[0].name, found_a[0].path, found_b[0].path)], [], [])
    by_name: dict[str, ResultFile] = {f.name: f for f in found_b}
    both = [(f.name, f.path, by_name[f.name].path) for f in found_a if f.name in by_name]
    names = {name for name, *_ in both}
    only_a = [f.name for f in found_a if f.name not in names]
    return _Pairs(both, only_a, [f.name for f in found_b if f.name not in names])


def _compare(name: str, a: Path, b: Path) -> Iterator[Comparison]:
    """Yield one comparison per run; most files hold one run."""
    for k, (run_a, run_b) in enumerate(zip_longest(runs(a), runs(b)), 1):
        title = name if k == 1 else f"{name} (run {k})"
        yield compare_runs(title, run_a or (), run_b or ())


class _TextOut:
    """Output as text: one block per file, and a line at the end."""

    def __init__(self, a: Path, b: Path) -> None:
        self._names = (display_name(os.fspath(a)), display_name(os.fspath(b)))
        self._files = self._equal = 0
        self._compared_s = self._same_s = 0.0

    def begin(self) -> None:
        click.echo(f"A: {self._names[0]}\nB: {self._names[1]}")

    def add(self, found: Comparison) -> None:
        click.echo("\n" + describe(found))
        self._files += 1
        self._equal += found.equal
        self._compared_s += found.steps.compared_s
        self._same_s += found.steps.same_s

    def end(self, only_a: list[str], only_b: list[str]) -> None:
        line = total(self._files, self._equal, self._same_s, self._compared_s, only_a, only_b)
        click.echo("\n" + line)


class _JsonOut:
    """Output as JSON: one document, with one line per file."""

    def __init__(self, a: Path, b: Path) -> None:
        self._names = (display_name(os.fspath(a)), display_name(os.fspath(b)))
        self._files = 0

    def begin(self) -> None:
        click.echo(f'{{"a": {dumps(self._names[0])}, "b": {dumps(self._names[1])}, "files": [')

    def add(self, found: Comparison) -> None:
        click.echo(("," if self._files else "") + dumps(found.to_json()))
        self._files += 1

    def end(self, only_a: list[str], only_b: list[str]) -> None:
        click.echo(f'], "only_a": {dumps(only_a)}, "only_b": {dumps(only_b)}}}')
