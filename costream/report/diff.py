"""Comparison of two runs over the same source."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import click

from costream.core.errors import ExitCode, SourceError, UsageError, display_name, printable, say
from costream.core.formatting import clean, counted, short_time, si, times
from costream.core.records import Header, Prediction, dumps, plain
from costream.report.alignment import Pair, Stretch, align_runs, held
from costream.report.command import ResultFile, find_results
from costream.report.digest import Digest
from costream.sinks.result_reader import Content, NotAResultError, runs

MOST_LISTED = 1000  # differences kept per run
_MOST_SEGMENTS = 100_000
_HOLD_S = 1.0  # maximum duration of a prediction, as a longer gap resets the model
_SAME_TIME_S = 1e-3
_SHOWN = 10  # differences shown per run; the longest


@dataclass(frozen=True)
class Difference:
    """An interval in which A and B have different labels; None: no event, or no output."""

    start_s: float
    end_s: float
    a: str | None
    b: str | None


@dataclass
class Agreement:
    """Time for which two runs agree, and the differences."""

    compared_s: float = 0.0
    same_s: float = 0.0
    count: int = 0  # number of differences
    differences: list[Difference] = field(default_factory=list)  # the first MOST_LISTED
    _last: Difference | None = None

    @property
    def ratio(self) -> float | None:
        """Share of the time in which they agree; None when there is nothing to compare."""
        return self.same_s / self.compared_s if self.compared_s > 0 else None

    def add(self, start_s: float, end_s: float, a: str | None, b: str | None) -> None:
        """Add an interval; one that continues the previous difference extends it."""
        self.compared_s += end_s - start_s
        if a == b:
            self.same_s += end_s - start_s
            self._last = None
            return
        last = self._last
        if last is not None and (last.a, last.b) == (a, b) and start_s - last.end_s < 1e-6:
            self._last = Difference(last.start_s, end_s, a, b)
            if self.differences and self.differences[-1] is last:
                self.differences[-1] = self._last
            return
        self._last = Difference(start_s, end_s, a, b)
        self.count += 1
        if len(self.differences) < MOST_LISTED:
            self.differences.append(self._last)


@dataclass
class ScoreGap:
    """Differences between the probabilities of labels that both runs have written."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0
    time_s: float | None = None  # of the largest
    label: str | None = None

    def add(self, a: dict[str, float], b: dict[str, float], time_s: float) -> None:
        """Compare the scores of one moment."""
        for label in a.keys() & b.keys():
            apart = abs(a[label] - b[label])
            if not math.isfinite(apart):
                continue
            self.count += 1
            self.total += apart
            if apart > self.most:
                self.most, self.time_s, self.label = apart, time_s, label


@dataclass
class Comparison:
    """Comparison of two runs, with the digests of both."""

    name: str
    a: Digest
    b: Digest
    steps: Agreement = field(default_factory=Agreement)
    timeline: Agreement = field(default_factory=Agreement)
    scores: ScoreGap = field(default_factory=ScoreGap)
    only_a: list[tuple[float, float]] = field(default_factory=list)  # covered by one, seconds
    only_b: list[tuple[float, float]] = field(default_factory=list)

    def settings(self) -> list[tuple[str, Any, Any]]:
        """Return the fields in which the headers differ: name, value of A, value of B."""
        a, b = _facts(self.a.header), _facts(self.b.header)
        return [(key, a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)]

    def costs(self) -> list[tuple[str, Any, Any]]:
        """Return the cost and the outcome of both runs: name, value of A, value of B."""
        a, b = _cost(self.a), _cost(self.b)
        return [(key, a[key], b[key]) for key in a]

    @property
    def equal(self) -> bool:
        """Whether both runs have the same labels with the same scores."""
        return (
            self.steps.count == self.timeline.count == 0
            and self.scores.most == 0
            and self.a.steps == self.b.steps
            and self.a.segment_count == self.b.segment_count
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        scores = self.scores
        out = {
            "name": self.name,
            "equal": self.equal,
            "settings": {key: {"a": x, "b": y} for key, x, y in self.settings()},
            "steps": _agreement(self.steps),
            "timeline": _agreement(self.timeline),
            "only_a_s": self.only_a,
            "only_b_s": self.only_b,
            "scores": {
                "compared": scores.count,
                "mean_difference": scores.total / scores.count if scores.count else None,
                "max_difference": scores.most if scores.count else None,
                "time_s": scores.time_s,
                "label": scores.label,
            },
            "cost": {key: {"a": x, "b": y} for key, x, y in self.costs()},
        }
        values: dict[str, Any] = plain(out)
        return values


def compare_runs(name: str, a: Iterable[Content], b: Iterable[Content]) -> Comparison:
    """Read two runs to their ends, in parallel and in constant memory, and compare them."""
    digest = partial(Digest, 80, most_segments=_MOST_SEGMENTS)
    comparison = Comparison(name, digest(), digest())
    for pair in align_runs(_predictions(a, comparison.a), _predictions(b, comparison.b)):
        _add(comparison, pair)
    both = _covered_by_both(comparison)
    for head_a, head_b in _heads_of_both(comparison.a, comparison.b):
        own_a, own_b = _segments(comparison.a, head_a, both), _segments(comparison.b, head_b, both)
        for moment in align_runs(own_a, own_b):
            label_a = None if moment.a is None else moment.a.value
            label_b = None if moment.b is None else moment.b.value
            comparison.timeline.add(moment.start_s, moment.end_s, label_a, label_b)
    return comparison


_Step: TypeAlias = "list[Prediction]"  # of one time, one per head


def _predictions(contents: Iterable[Content], digest: Digest) -> Iterator[Stretch[_Step]]:
    """Yield the predictions of each step, and add all records to ``digest``."""

    def points() -> Iterator[tuple[float, _Step]]:
        step: _Step = []
        for content in contents:
            digest.add(content)
            if not isinstance(content, Prediction) or not content.top:
                continue
            if step and content.person is not None and content.i == step[0].i:
                continue  # another person: the first ones are compared
            if step and (content.model is None or content.i != step[0].i):
                yield step[0].time_s, step
                step = []
            step.append(content)
        if step:
            yield step[0].time_s, step

    # The header may come late or never, so the step length is read at the end.
    return held(points(), lambda: digest.step_s, _HOLD_S)


def _covered_by_both(comparison: Comparison) -> list[tuple[float, float]]:
    """Return the intervals that both runs cover, and note those of one (more than a step long)."""
    a, b, both = comparison.a, comparison.b, []
    for pair in align_runs(_covered(a), _covered(b)):
        interval = (pair.start_s, pair.end_s)
        if pair.a is not None and pair.b is not None:
            both.append(interval)
        elif pair.end_s - pair.start_s > max(a.step_s, b.step_s) + _SAME_TIME_S:
            (comparison.only_b if pair.a is None else comparison.only_a).append(interval)
    return both


def _covered(digest: Digest) -> Iterator[Stretch[None]]:
    """Yield the time of a run without its gaps."""
    start_s = digest.first_s
    for gap in digest.gaps:
        yield Stretch(start_s, gap.start_s, None)
        start_s = gap.end_s
    yield Stretch(start_s, digest.last_s, None)


def _segments(
    digest: Digest, head: str | None, within: Iterable[tuple[float, float]]
) -> list[Stretch[str]]:
    """Return the parts of the segments of a head that are within some intervals, by time."""
    own = [
        (max(s.start_s, a), min(s.end_s, b), s.label)
        for a, b in within
        for _, s in digest.timeline(head)
    ]
    return [Stretch(*part) for part in sorted(own) if part[1] > part[0]]


def _heads_of_both(a: Digest, b: Digest) -> list[tuple[str | None, str | None]]:
    """Return the pairs of heads to compare: those of the same model, else all heads as one."""
    named_a, named_b = _by_model(a), _by_model(b)
    pairs = [(head, named_b[model]) for model, head in named_a.items() if model in named_b]
    return pairs or [(None, None)]


def _by_model(digest: Digest) -> dict[str, str | None]:
    alone = "" if digest.header is None else digest.header.model
    return {alone if head is None else head: head for head in digest.heads.names}


def _add(comparison: Comparison, pair: Pair[_Step]) -> None:
    if pair.a is None or pair.b is None:
        return  # only times that both runs cover are compared
    a, b = pair.a.value, pair.b.value
    heads = _heads_of_both(comparison.a, comparison.b)
    best_a = _best(a, [head for head, _ in heads])
    best_b = _best(b, [head for _, head in heads])
    comparison.steps.add(pair.start_s, pair.end_s, best_a, best_b)
    time_a, time_b = a[0].time_s, b[0].time_s
    at_once = abs(time_a - time_b) < _SAME_TIME_S
    if at_once and abs(pair.start_s - max(time_a, time_b)) < _SAME_TIME_S:
        comparison.scores.add(_scores(a, comparison.a), _scores(b, comparison.b), time_a)


def _best(step: _Step, heads: Iterable[str | None]) -> str:
    """Return the best label of each of the heads (None: of all)."""
    own = (p for head in heads for p in step if head is None or p.model == head)
    return " + ".join(p.top[0][0] for p in own)


def _scores(step: _Step, digest: Digest) -> dict[str, float]:
    scores: dict[str, float] = {}
    for record in step:
        scores |= digest.scores(record)
    return scores


def _facts(header: Header | None) -> dict[str, Any]:
    if header is None:
        return {}
    facts: dict[str, Any] = {
        "version": header.version,
        "model": header.model,
        "weights_sha256": header.weights_sha256,
        "labels": list(header.labels),
        "background": header.background,
        "rate_hz": header.rate_hz if math.isfinite(header.rate_hz) else None,
        "delay_s": header.delay_s if math.isfinite(header.delay_s) else None,
        "source": PurePath(header.source).name,
        "kind": header.kind,
        "duration_s": header.duration_s,
    }
    heads = {h.model: {"weights_sha256": h.weights_sha256} for h in header.heads or ()}
    return {**facts, **_flat("heads", heads), **_flat("options", header.options)}


def _flat(prefix: str, values: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(f"{prefix}.{key}", value) if isinstance(value, dict) else None
        out.update(inner if inner is not None else {f"{prefix}.{key}": value})
    return out


def _cost(digest: Digest) -> dict[str, Any]:
    costs, summary = digest.cost_json(), digest.summary
    ms = costs.get("ms")
    step = ms.get("step") if isinstance(ms, dict) else None
    mean = step.get("mean") if isinstance(step, dict) else None
    return {
        "steps": digest.steps,
        "segments": digest.segment_count,
        "macs_per_step": costs.get("macs_per_step"),
        "dense_macs_per_step": costs.get("dense_macs_per_step"),
        "ms_per_step": mean or None,
        "x_realtime": summary.x_realtime if summary is not None else None,
        "gaps": digest.gap_count,
        "errors": digest.fault_count,
        "complete": digest.complete,
    }


def _agreement(agreement: Agreement) -> dict[str, Any]:
    return {
        "compared_s": agreement.compared_s,
        "agreement": agreement.ratio,
        "count": agreement.count,
        "differences": agreement.differences,
    }


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

    ``skipped``: gets those of what is no result.
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
        agreement = f"{_percent(same_s / compared_s)} of {short_time(compared_s)}"
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


def describe(comparison: Comparison) -> str:
    """Return the lines of one run."""
    lines = [clean(comparison.name) + ("  the same" if comparison.equal else "")]
    settings = comparison.settings()
    lines += _columns([(key, _short(key, a), _short(key, b)) for key, a, b in settings])
    lines += _agreement_lines("steps", comparison.steps)
    scores = comparison.scores
    if scores.count and scores.most > 0:
        mean = scores.total / scores.count
        where = "" if scores.time_s is None else f" at {short_time(scores.time_s, 2)}"
        lines.append(
            f"  scores differ by {mean:.3g} on average, by {scores.most:.3g} at most"
            f"{where} ({clean(scores.label or '')})"
        )
    lines += _agreement_lines("timeline", comparison.timeline)
    for side, alone in (("A", comparison.only_a), ("B", comparison.only_b)):
        lines += [
            f"  only {side} covers {short_time(x, 2)} to {short_time(y, 2)}" for x, y in alone
        ]
    lines += _columns(
        [
            (key.replace("_", " "), _cost_lines(key, a), _cost_lines(key, b) + _ratio(key, a, b))
            for key, a, b in comparison.costs()
            if a != b
        ]
    )
    return "\n".join(lines)


def _agreement_lines(what: str, agreement: Agreement) -> list[str]:
    if agreement.ratio is None:
        return [f"  {what}: nothing to compare"]
    length = short_time(agreement.compared_s)
    over = {"steps": f"agree for {{}} of {length}", "timeline": f"agrees for {{}} of the {length}"}
    head = f"  {what} {over[what].format(_percent(agreement.ratio))}"
    head += " in which either has an event" if what == "timeline" else ""
    if not agreement.count:
        return [head]
    longest = sorted(agreement.differences, key=lambda d: d.start_s - d.end_s)[:_SHOWN]
    more = f", the {_SHOWN} longest of" if agreement.count > _SHOWN else ","
    lines = [f"{head}{more} {counted(agreement.count, 'difference')}:"]
    return lines + [_line(d) for d in sorted(longest, key=lambda d: d.start_s)]


def _line(difference: Difference) -> str:
    when = f"{short_time(difference.start_s, 2):>10} {short_time(difference.end_s, 2):>10}"
    length = f"{difference.end_s - difference.start_s:7.2f} s"
    labels = (difference.a, difference.b)
    sides = " | ".join("–" if label is None else clean(label) for label in labels)
    return f"  {when} {length}  {sides}"


def _columns(rows: list[tuple[str, str, str]]) -> list[str]:
    width = max((len(key) for key, *_ in rows), default=0)
    return [f"  {clean(key):<{width}}  {a} | {b}" for key, a, b in rows]


def _percent(ratio: float) -> str:
    # 99.96 % must not be shown as 100 %
    return "100 %" if ratio >= 1 else f"{min(99.9, 100 * ratio):.1f} %"


def _short(key: str, value: Any) -> str:
    if key == "weights_sha256" and isinstance(value, str):
        return value[:12] or "–"
    if value is None:
        return "–"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cost_lines(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key.endswith("macs_per_step"):
        return si(value, "MAC")
    if key == "x_realtime":
        return times(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value).lower()


def _ratio(key: str, a: Any, b: Any) -> str:
    if key not in ("macs_per_step", "dense_macs_per_step", "ms_per_step") or not a or not b:
        return ""
    return f" ({times(b / a)} more)" if b > a else f" ({times(a / b)} less)"
