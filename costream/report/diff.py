"""Comparison of two runs over the same source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, TypeAlias

from costream.records import Header, Prediction, plain
from costream.report.digest import Digest
from costream.report.overlap import Pair, Stretch, align_runs, held
from costream.results.reader import Content

MOST_LISTED = 1000  # differences kept per run
_MOST_SEGMENTS = 100_000
_HOLD_S = 1.0  # maximum duration of a prediction, as a longer gap resets the model
_SAME_TIME_S = 1e-3


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

    def settings(self) -> list[tuple[str, Any, Any]]:
        """Return the fields in which the headers differ: name, value of A, value of B."""
        a, b = _facts(self.a.header), _facts(self.b.header)
        keys = dict.fromkeys([*a, *b])
        return [(key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)]

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
            "scores": {
                "compared": scores.count,
                "mean_difference": scores.total / scores.count if scores.count else None,
                "max_difference": scores.most if scores.count else None,
                "time_s": scores.time_s,
                "label": scores.label,
            },
            "cost": {key: {"a": x, "b": y} for key, x, y in self.costs()},
        }
        found: dict[str, Any] = plain(out)
        return found


def compare_runs(name: str, a: Iterable[Content], b: Iterable[Content]) -> Comparison:
    """Read two runs to their ends, in parallel and in constant memory, and compare them."""
    found = Comparison(
        name, Digest(80, most_segments=_MOST_SEGMENTS), Digest(80, most_segments=_MOST_SEGMENTS)
    )
    for pair in align_runs(_predictions(a, found.a), _predictions(b, found.b)):
        _add(found, pair)
    for head_a, head_b in _heads_of_both(found.a, found.b):
        for moment in align_runs(_segments(found.a, head_a), _segments(found.b, head_b)):
            say_a = None if moment.a is None else moment.a.value
            say_b = None if moment.b is None else moment.b.value
            found.timeline.add(moment.start_s, moment.end_s, say_a, say_b)
    return found


_Step: TypeAlias = "list[Prediction]"  # of one time, one per head


def _predictions(contents: Iterable[Content], digest: Digest) -> Iterator[Stretch[_Step]]:
    """Yield the predictions of each step, and add all records to ``digest``."""

    def points() -> Iterator[tuple[float, _Step]]:
        step: _Step = []
        for content in contents:
            digest.add(content)
            if not isinstance(content, Prediction) or not content.top:
                continue
            if step and (content.model is None or content.i != step[0].i):
                yield step[0].time_s, step
                step = []
            step.append(content)
        if step:
            yield step[0].time_s, step

    # The header may come late or never, so the step length is read at the end.
    return held(points(), lambda: digest.step_s, _HOLD_S)


def _segments(digest: Digest, head: str | None) -> Iterator[Stretch[str]]:
    own = (segment for _, segment in digest.timeline(head))
    for segment in sorted(own, key=lambda s: s.start_s):
        if segment.end_s > segment.start_s:
            yield Stretch(segment.start_s, segment.end_s, segment.label)


def _heads_of_both(a: Digest, b: Digest) -> list[tuple[str | None, str | None]]:
    """Return the pairs of heads to compare: those of the same model, else all heads as one."""
    named_a, named_b = _by_model(a), _by_model(b)
    pairs = [(head, named_b[model]) for model, head in named_a.items() if model in named_b]
    return pairs or [(None, None)]


def _by_model(digest: Digest) -> dict[str, str | None]:
    alone = "" if digest.header is None else digest.header.model
    return {alone if head is None else head: head for head in digest.heads.names}


def _add(found: Comparison, pair: Pair[_Step]) -> None:
    if pair.a is None or pair.b is None:
        return  # only times that both runs cover are compared
    a, b = pair.a.value, pair.b.value
    heads = _heads_of_both(found.a, found.b)
    best_a = _best(a, [head for head, _ in heads])
    best_b = _best(b, [head for _, head in heads])
    found.steps.add(pair.start_s, pair.end_s, best_a, best_b)
    time_a, time_b = a[0].time_s, b[0].time_s
    at_once = abs(time_a - time_b) < _SAME_TIME_S
    if at_once and abs(pair.start_s - max(time_a, time_b)) < _SAME_TIME_S:
        found.scores.add(_scores(a, found.a), _scores(b, found.b), time_a)


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
        "rate_hz": _known(header.rate_hz),
        "delay_s": _known(header.delay_s),
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


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _agreement(found: Agreement) -> dict[str, Any]:
    return {
        "compared_s": found.compared_s,
        "agreement": found.ratio,
        "count": found.count,
        "differences": found.differences,
    }
