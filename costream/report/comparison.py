"""Where two runs over the same source disagree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from costream.records import Header, Prediction, plain
from costream.report.digest import Digest
from costream.report.overlap import Pair, Stretch, held, side_by_side
from costream.report.reading import Content

MOST_LISTED = 1000  # stretches kept of a run
_MOST_SEGMENTS = 100_000
_HOLD_S = 1.0  # a prediction holds no longer, as a longer gap resets the model
_SAME_TIME_S = 1e-3


@dataclass(frozen=True)
class Difference:
    """A stretch in which A and B say different labels; None: no event, or nothing at all."""

    start_s: float
    end_s: float
    a: str | None
    b: str | None


@dataclass
class Agreement:
    """For how long two runs say the same, and where they do not."""

    compared_s: float = 0.0
    same_s: float = 0.0
    count: int = 0  # of the differences
    differences: list[Difference] = field(default_factory=list)  # the first MOST_LISTED
    _last: Difference | None = None

    @property
    def ratio(self) -> float | None:
        """Share of the time in which they agree; None when there is nothing to compare."""
        return self.same_s / self.compared_s if self.compared_s > 0 else None

    def add(self, start_s: float, end_s: float, a: str | None, b: str | None) -> None:
        """Count a stretch; one that goes on where another ended makes that one longer."""
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
    """How far the probabilities of labels that both runs have written are apart."""

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
    """Everything that is known of two runs."""

    name: str
    a: Digest
    b: Digest
    steps: Agreement = field(default_factory=Agreement)
    timeline: Agreement = field(default_factory=Agreement)
    scores: ScoreGap = field(default_factory=ScoreGap)

    def settings(self) -> list[tuple[str, Any, Any]]:
        """Give what the headers say differently: name, value of A, value of B."""
        a, b = _facts(self.a.header), _facts(self.b.header)
        keys = dict.fromkeys([*a, *b])
        return [(key, a.get(key), b.get(key)) for key in keys if a.get(key) != b.get(key)]

    def costs(self) -> list[tuple[str, Any, Any]]:
        """Give the cost of both runs, and how they went: name, value of A, value of B."""
        a, b = _cost(self.a), _cost(self.b)
        return [(key, a[key], b[key]) for key in a]

    @property
    def equal(self) -> bool:
        """Whether both runs say the same, with the same scores."""
        return (
            self.steps.count == self.timeline.count == 0
            and self.scores.most == 0
            and self.a.steps == self.b.steps
            and self.a.segment_count == self.b.segment_count
        )

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
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
    """Read two runs to their ends, side by side and in constant memory, and compare them."""
    found = Comparison(
        name, Digest(80, most_segments=_MOST_SEGMENTS), Digest(80, most_segments=_MOST_SEGMENTS)
    )
    for pair in side_by_side(_predictions(a, found.a), _predictions(b, found.b)):
        _step(found, pair)
    for moment in side_by_side(_segments(found.a), _segments(found.b)):
        say_a = None if moment.a is None else moment.a.value
        say_b = None if moment.b is None else moment.b.value
        found.timeline.add(moment.start_s, moment.end_s, say_a, say_b)
    return found


def _predictions(contents: Iterable[Content], digest: Digest) -> Iterator[Stretch[Prediction]]:
    """Yield the predictions, and gather everything in ``digest`` on the way."""

    def points() -> Iterator[tuple[float, Prediction]]:
        for content in contents:
            digest.add(content)
            if isinstance(content, Prediction) and content.top:
                yield content.time_s, content

    # The header may come late or never: the step is asked for at the end.
    return held(points(), lambda: digest.step_s, _HOLD_S)


def _segments(digest: Digest) -> Iterator[Stretch[str]]:
    for segment in sorted(digest.segments, key=lambda s: s.start_s):
        if segment.end_s > segment.start_s:
            yield Stretch(segment.start_s, segment.end_s, segment.label)


def _step(found: Comparison, pair: Pair[Prediction]) -> None:
    if pair.a is None or pair.b is None:
        return  # only where both looked can they agree
    a, b = pair.a.value, pair.b.value
    found.steps.add(pair.start_s, pair.end_s, a.top[0][0], b.top[0][0])
    at_once = abs(a.time_s - b.time_s) < _SAME_TIME_S
    if at_once and abs(pair.start_s - max(a.time_s, b.time_s)) < _SAME_TIME_S:
        found.scores.add(_scores(a, found.a), _scores(b, found.b), a.time_s)


def _scores(record: Prediction, digest: Digest) -> dict[str, float]:
    if record.scores is not None and digest.header is not None:
        return dict(zip(digest.header.labels, record.scores, strict=False))
    return dict(record.top)


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
    return {**facts, **_flat("options", header.options)}


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
