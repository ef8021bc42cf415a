"""``costream report --diff``: print the differences between the results of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

import click

from costream.core.errors import ExitCode, SourceError, UsageError, display_name, printable, say
from costream.core.formatting import clean, counted, short_time
from costream.core.records import dumps
from costream.report.comparison import Comparison, compare_runs
from costream.report.comparison_text import describe, share_text
from costream.report.result_files import ResultFile, find_results
from costream.sinks.result_reader import NotAResultError, runs


def compare(a: Path, b: Path, *, as_json: bool) -> ExitCode:
    """Print the differences between the results in ``a`` and ``b``, two files or two folders.

    Return OK whether they differ or not, PARTIAL if some cannot be read, INPUT if there was none to
    compare. Raise SourceError if there are none, UsageError for a file and a folder.
    """
    if a.is_dir() != b.is_dir() and a.exists() and b.exists():
        raise UsageError("compares two files or two folders, not one of each", where="--diff")
    both, only_a, only_b = _pair(a, b)
    failures: list[SourceError] = []
    skipped: list[SourceError] = []
    comparisons = _comparisons(both, failures, skipped)
    names = (display_name(os.fspath(a)), display_name(os.fspath(b)))
    print_all = _print_json if as_json else _print_text
    compared = print_all(names, comparisons, only_a, only_b)
    if (failures or skipped) and not compared:
        return (failures or skipped)[0].exit_code
    return ExitCode.PARTIAL if failures else ExitCode.OK


def _pair(a: Path, b: Path) -> tuple[list[tuple[str, Path, Path]], list[str], list[str]]:
    """Return the results that exist on both sides, and the names of those on one side only."""
    found_a, found_b = find_results(a), find_results(b)
    if not a.is_dir():
        return [(found_a[0].name, found_a[0].path, found_b[0].path)], [], []
    by_name: dict[str, ResultFile] = {f.name: f for f in found_b}
    both = [(f.name, f.path, by_name[f.name].path) for f in found_a if f.name in by_name]
    names = {name for name, *_ in both}
    only_a, only_b = (
        [f.name for f in found if f.name not in names] for found in (found_a, found_b)
    )
    return both, only_a, only_b


def _comparisons(
    pairs: Iterable[tuple[str, Path, Path]],
    failures: list[SourceError],
    skipped: list[SourceError],
) -> Iterator[Comparison]:
    """Yield one comparison per run; errors are printed and collected.

    ``skipped`` collects the errors of files that are not results.
    """
    for name, a, b in pairs:
        try:
            yield from _compare(name, a, b)
        except NotAResultError as error:
            say(f"costream: skipped: {error}")
            skipped.append(error)
        except SourceError as error:
            say(f"costream: {error}")
            failures.append(error)


def _compare(name: str, a: Path, b: Path) -> Iterator[Comparison]:
    """Yield one comparison per run; most files hold one run."""
    for k, (run_a, run_b) in enumerate(zip_longest(runs(a), runs(b)), 1):
        title = name if k == 1 else f"{name} (run {k})"
        yield compare_runs(title, run_a or (), run_b or ())


def _print_text(
    names: tuple[str, str], comparisons: Iterable[Comparison], only_a: list[str], only_b: list[str]
) -> int:
    """Print one block per run, and lines at the end; return the number of runs."""
    click.echo(printable(f"A: {names[0]}\nB: {names[1]}"))
    count = equal = 0
    compared_s = same_s = 0.0
    for comparison in comparisons:
        click.echo("\n" + describe(comparison))
        count += 1
        equal += comparison.equal
        compared_s += comparison.steps.compared_s
        same_s += comparison.steps.same_s
    words = f"{counted(count, 'run')} compared, {equal} the same"
    if compared_s > 0:
        agreement = f"{share_text(same_s / compared_s)} of {short_time(compared_s)}"
        words += f"; the steps agree for {agreement}"
    click.echo(f"\n{words}")
    for side, missing in (("A", only_a), ("B", only_b)):
        for name in missing:
            click.echo(f"only in {side}: {clean(name)}")
    return count


def _print_json(
    names: tuple[str, str], comparisons: Iterable[Comparison], only_a: list[str], only_b: list[str]
) -> int:
    """Print one document, with one line per run; return the number of runs."""
    click.echo(f'{{"a": {dumps(names[0])}, "b": {dumps(names[1])}, "files": [')
    count = 0
    for comparison in comparisons:
        click.echo(("," if count else "") + dumps(comparison.to_json()))
        count += 1
    click.echo(f'], "only_a": {dumps(only_a)}, "only_b": {dumps(only_b)}}}')
    return count
