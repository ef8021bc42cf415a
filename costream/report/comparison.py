"""Comparison of two runs over the same source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any, TypeAlias

from costream.core.records import Header, Prediction, plain
from costream.report.alignment import Pair, Stretch, align_runs, held
from costream.report.run_summary import RunSummary
from costream.sinks.result_reader import Content

MOST_LISTED = 1000  # differences kept per run
_MOST_SEGMENTS = 100_000
_HOLD_S = 1.0  # maximum duration of a prediction, as a longer gap resets the model
_SAME_TIME_S = 1e-3
_SHOWN = 10  # differences shown per run; the longest
_Step: TypeAlias = "list[Prediction]"  # of one time, one per head


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


@dataclass(frozen=True)
class ComparedRun:
    """A comparison as ``report --diff --json`` prints it."""

    name: str
    equal: bool  # the same labels with the same scores
    settings: dict[str, dict[str, Any]]  # fields of the headers that differ: values of a and b
    steps: dict[str, Any]  # time that both have, for which they agree, and the differences
    timeline: dict[str, Any]  # the same for the segments
    only_a_s: tuple[tuple[float, float], ...]  # times that only one covers, start and end
    only_b_s: tuple[tuple[float, float], ...]
    scores: dict[str, Any]  # differences of the scores that both have
    cost: dict[str, dict[str, Any]]  # values of a and b


@dataclass(frozen=True)
class ComparedRuns:
    """What ``report --diff --json`` prints."""

    a: str
    b: str
    files: tuple[ComparedRun, ...]
    only_a: tuple[str, ...]  # results on one side
    only_b: tuple[str, ...]


@dataclass
class Comparison:
    """Comparison of two runs, with the digests of both."""

    name: str
    a: RunSummary
    b: RunSummary
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
        out = ComparedRun(
            name=self.name,
            equal=self.equal,
            settings={key: {"a": x, "b": y} for key, x, y in self.settings()},
            steps=_agreement(self.steps),
            timeline=_agreement(self.timeline),
            only_a_s=tuple(self.only_a),
            only_b_s=tuple(self.only_b),
            scores={
                "compared": scores.count,
                "mean_difference": scores.total / scores.count if scores.count else None,
                "max_difference": scores.most if scores.count else None,
                "time_s": scores.time_s,
                "label": scores.label,
            },
            cost={key: {"a": x, "b": y} for key, x, y in self.costs()},
        )
        values: dict[str, Any] = plain(asdict(out))
        return values


def compare_runs(name: str, a: Iterable[Content], b: Iterable[Content]) -> Comparison:
    """Read two runs to their ends, in parallel and in constant memory, and compare them."""
    summary = partial(RunSummary, 80, most_segments=_MOST_SEGMENTS)
    comparison = Comparison(name, summary(), summary())
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


def _predictions(contents: Iterable[Content], summary: RunSummary) -> Iterator[Stretch[_Step]]:
    """Yield the predictions of each step, and add all records to ``summary``."""

    def points() -> Iterator[tuple[float, _Step]]:
        step: _Step = []
        for content in contents:
            summary.add(content)
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
    return held(points(), lambda: summary.step_s, _HOLD_S)


def _covered_by_both(comparison: Comparison) -> list[tuple[float, float]]:
    """Return the intervals that both runs cover; store those longer than a step of only one."""
    a, b, both = comparison.a, comparison.b, []
    for pair in align_runs(_covered(a), _covered(b)):
        interval = (pair.start_s, pair.end_s)
        if pair.a is not None and pair.b is not None:
            both.append(interval)
        elif pair.end_s - pair.start_s > max(a.step_s, b.step_s) + _SAME_TIME_S:
            (comparison.only_b if pair.a is None else comparison.only_a).append(interval)
    return both


def _covered(summary: RunSummary) -> Iterator[Stretch[None]]:
    """Yield the time of a run without its gaps."""
    start_s = summary.first_s
    for gap in summary.gaps:
        yield Stretch(start_s, gap.start_s, None)
        start_s = gap.end_s
    yield Stretch(start_s, summary.last_s, None)


def _segments(
    summary: RunSummary, head: str | None, within: Iterable[tuple[float, float]]
) -> list[Stretch[str]]:
    """Return the parts of the segments of a head that are within some intervals, by time."""
    parts = [
        (max(s.start_s, a), min(s.end_s, b), s.label)
        for a, b in within
        for _, s in summary.timeline(head)
    ]
    return [Stretch(*part) for part in sorted(parts) if part[1] > part[0]]


def _heads_of_both(a: RunSummary, b: RunSummary) -> list[tuple[str | None, str | None]]:
    """Return the pairs of heads to compare: heads of the same model, else all heads as one."""
    named_a, named_b = _by_model(a), _by_model(b)
    pairs = [(head, named_b[model]) for model, head in named_a.items() if model in named_b]
    return pairs or [(None, None)]


def _by_model(summary: RunSummary) -> dict[str, str | None]:
    alone = "" if summary.header is None else summary.header.model
    return {alone if head is None else head: head for head in summary.heads.names}


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
    predictions = (p for head in heads for p in step if head is None or p.model == head)
    return " + ".join(p.top[0][0] for p in predictions)


def _scores(step: _Step, summary: RunSummary) -> dict[str, float]:
    scores: dict[str, float] = {}
    for record in step:
        scores |= summary.scores(record)
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


def _cost(summary: RunSummary) -> dict[str, Any]:
    costs, final = summary.cost_json(), summary.final
    ms = costs.get("ms")
    step = ms.get("step") if isinstance(ms, dict) else None
    mean = step.get("mean") if isinstance(step, dict) else None
    return {
        "steps": summary.steps,
        "segments": summary.segment_count,
        "macs_per_step": costs.get("macs_per_step"),
        "dense_macs_per_step": costs.get("dense_macs_per_step"),
        "ms_per_step": mean or None,
        "x_realtime": final.x_realtime if final is not None else None,
        "gaps": summary.gap_count,
        "errors": summary.fault_count,
        "complete": summary.complete,
    }


def _agreement(agreement: Agreement) -> dict[str, Any]:
    return {
        "compared_s": agreement.compared_s,
        "agreement": agreement.ratio,
        "count": agreement.count,
        "differences": agreement.differences,
    }
