"""Fixtures: synthetic runs of any length, written by the sinks of detect."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from costream.__main__ import main
from costream.core.records import (
    Alert,
    Compute,
    Fault,
    Gap,
    Header,
    Prediction,
    Record,
    Segment,
    StageTimes,
    Summary,
)
from costream.report.report_builder import MOST_ON_A_PAGE
from costream.sinks.journal import Journal
from costream.sinks.registry import make_sinks
from kit.paths import SAMPLES

LABELS = ("background", "walk", "sit down", "sit", "stand up", "fall", "lie")
MACS, DENSE = 43_464_000, 66_688_320


@dataclass(frozen=True)
class Script:
    """What a run is to look like. The same script gives the same records."""

    seconds: float = 20.0
    rate_hz: float = 8.0
    labels: Sequence[str] = LABELS
    model: str = "cooadtr"
    weights: str = "ab" * 32
    source: str = "clips/gone.mp4"
    kind: str = "video"
    seed: int = 0
    top_k: int = 3
    scores: bool = False
    gap: tuple[float, float] | None = None
    fault_s: float | None = None
    fault: str = "1 packet could not be decoded"
    ms: StageTimes = field(default_factory=lambda: StageTimes(2.0, 5.0, 0.5, 0.25))
    complete: bool = True
    segment_s: tuple[float, float] = (1.0, 6.0)

    def header(self) -> Header:
        return Header(
            version="0.1.0",
            model=self.model,
            weights_sha256=self.weights,
            labels=tuple(self.labels),
            background=self.labels[0],
            rate_hz=self.rate_hz,
            delay_s=0.0,
            source=self.source,
            kind=self.kind,
            duration_s=self.seconds,
            options={"top_k": self.top_k, "timeline": {"threshold": 0.4}},
        )

    def records(self) -> Iterator[Record]:
        chance, noise = random.Random(self.seed), random.Random(self.seed + 1000)
        label, begin, end = self.labels[0], 0.0, chance.uniform(*self.segment_s)
        for i in range(round(self.seconds * self.rate_hz)):
            t = i / self.rate_hz
            if self.gap is not None and self.gap[0] < t < self.gap[1]:
                continue
            if self.gap is not None and t == self.gap[1]:
                yield Gap(*self.gap, f"no data for {self.gap[1] - self.gap[0]:.3f} s")
            if t == self.fault_s:
                yield Fault(t, self.fault, count=3)
            if t >= end:
                if label != self.labels[0]:
                    yield Segment(begin, t, label, round(chance.uniform(0.5, 1), 3))
                label, begin = chance.choice(self.labels), t
                end = t + chance.uniform(*self.segment_s)
            yield self._prediction(i, t, label, round(noise.uniform(0.5, 0.9), 3))
            yield Compute(i, t, MACS, DENSE, self.ms)

    def _prediction(self, i: int, t: float, label: str, score: float) -> Prediction:
        rest = (1 - score) / (len(self.labels) - 1)
        scores = tuple(score if other == label else rest for other in self.labels)
        order = sorted(range(len(scores)), key=lambda k: -scores[k])[: self.top_k]
        top = tuple((self.labels[k], scores[k]) for k in order)
        return Prediction(i, t, 3 * i, 512 * i, top, scores if self.scores else None, None, i < 3)

    def summary(self, records: Sequence[Record]) -> Summary:
        steps = sum(isinstance(r, Compute) for r in records)
        return Summary(
            steps=steps,
            segments=sum(isinstance(r, Segment) for r in records),
            dropped=0,
            errors=sum(r.count for r in records if isinstance(r, Fault)),
            media_s=self.seconds,
            wall_s=self.seconds / 20,
            x_realtime=20.0,
            macs=steps * MACS,
            dense_macs=steps * DENSE,
            complete=self.complete,
            exit=0 if self.complete else 130,
        )


def write(folder: Path, name: str = "clip.mp4", formats: str = "jsonl", **values: Any) -> Path:
    """Write the results of a Script and return the file of the first format."""
    script = Script(**values)
    records = list(script.records())
    sinks = make_sinks(formats.split(","), folder, name)
    for sink in sinks:
        sink.open(script.header())
    for record in records:
        for sink in sinks:
            sink.write(record)
    for sink in sinks:
        sink.close(script.summary(records))
    return folder / f"{name}.{formats.split(',')[0]}"


@pytest.fixture
def result(tmp_path):
    """Return a function that writes results below ``tmp_path / "out"``."""

    def make(name: str = "clip.mp4", formats: str = "jsonl", *, to: str = "out", **values: Any):
        return write(tmp_path / to, name, formats, **values)

    return make


@pytest.fixture
def watched(tmp_path):
    """Return a function that writes the journal of runs over a feed into ``tmp_path / "log"``."""

    def make(name: str = "cam", *, runs: int = 1, killed: bool = False, rotation: Any = None):
        script = Script(source="rtsp://***@host/cam", gap=(9.0, 12.0))
        records = list(script.records())
        for k in range(runs):
            journal = Journal(tmp_path / "log", name, rotation)
            began = f"2026-11-22T{4 + k:02d}:00:00.000Z"
            journal.open(replace(script.header(), began=began, duration_s=None))
            for record in records:
                journal.write(record)
            journal.write(Alert(3.5, "walk>=0.8 for 2s", "walk", 0.9, 1.5, f"{name}-3.mp4"))
            journal.write(Alert(4.5, "walk>=0.8 for 2s", "walk", 0.9, 2.5))
            journal.close(script.summary(records))
        if killed:
            journal.path.write_bytes(journal.path.read_bytes()[:-20])
        return journal.path

    return make


@pytest.fixture(scope="session")
def crowded(tmp_path_factory) -> Path:
    """The report of a run with everything in it and pictures; not to be changed."""
    path = write(
        tmp_path_factory.mktemp("crowded"),
        labels=("none", "<script>alert(1)</script>", 'a & "b"', "日本語", *map(str, range(30))),
        seconds=120.0,
        gap=(20.0, 31.5),
        fault_s=10.0,
        source=str(SAMPLES / "room.mp4"),
    )
    assert main(["report", str(path)]) == 0
    return path.with_suffix(".html")


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Path:
    """The results of one run more than a page shows, and their report; not to be changed."""
    out = tmp_path_factory.mktemp("many") / "out"
    first = write(out, "day 1/clip #0.mp4", seconds=5.0)
    for k in range(1, MOST_ON_A_PAGE + 1):
        shutil.copy(first, first.with_name(f"clip #{k}.mp4.jsonl"))
    assert main(["report", str(out)]) == 0
    return out
