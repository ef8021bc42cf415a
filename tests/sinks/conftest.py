"""One made-up run for every format: each record type, awkward names, absent values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from costream.core.records import (
    OBJECT_DETECTION,
    Box,
    Compute,
    Fault,
    Gap,
    Head,
    Header,
    Objects,
    Prediction,
    Record,
    Segment,
    StageTimes,
    Summary,
)

LABELS = ("background", "walk", 'sit, "down"', "stand\nup", "<b>fall</b> --> lié")


@dataclass(frozen=True)
class Run:
    """What a run writes, from header to summary."""

    header: Header
    records: tuple[Record, ...]
    summary: Summary

    def cut_short(self) -> Run:
        return replace(self, summary=replace(self.summary, complete=False, exit=130))

    def empty(self) -> Run:
        return replace(self, records=(), summary=replace(self.summary, steps=0, segments=0))


def _step(i: int, label: int, score: float) -> tuple[Record, Record]:
    rest = (1 - score) / (len(LABELS) - 1)
    scores = tuple(score if k == label else rest for k in range(len(LABELS)))
    top = ((LABELS[label], score), (LABELS[0] if label else LABELS[1], rest))
    ahead = ((top[0], top[1]), (top[1], top[0]))
    time_s = i / 3  # does not end in decimals
    prediction = Prediction(i, time_s, 10 * i, 512 * i, top, scores, ahead, i < 2, i != 3)
    ms = StageTimes(0.5 + i, 1.25, 0.125, 0.0625)
    return prediction, Compute(i, time_s, 9_640_000 + i, 410_900_000, ms, dropped=i // 3)


@pytest.fixture
def run(run_of_actions: Run) -> Run:
    return run_of_actions


@pytest.fixture
def run_of_actions() -> Run:
    header = Header(
        version="0.1.0",
        model="cooadtr",
        weights_sha256="ab" * 32,
        labels=LABELS,
        background="background",
        rate_hz=3.0,
        delay_s=0.0,
        source="rtsp://***@host/kamera-ä?token=***",
        kind="video",
        duration_s=None,
        options={"top_k": 2, "scores": True},
    )
    gap = Gap(1.666667, 4.0, "no data for 2.333 s")
    fault = Fault(1.0, "1 packet could not be decoded")
    segments = (
        Segment(0.0, 1.0, LABELS[1], 0.9),
        Segment(1.0, 1.6666666, LABELS[2], 0.7512345678),
        Segment(4.0, 5.0, LABELS[3], 0.5),
        Segment(3725.0004, 3726.0, LABELS[4], 0.999),
    )
    records: tuple[Record, ...] = (
        *(*_step(0, 1, 0.9), *_step(1, 1, 0.8), *_step(2, 2, 0.7)),
        *(segments[0], fault, *_step(3, 2, 0.75), *_step(4, 0, 0.5)),
        *(segments[1], gap, *segments[2:]),
    )
    totals = {"steps": 5, "segments": 4, "dropped": 1, "errors": 1}
    macs = {"macs": 48_200_010, "dense_macs": 2_054_500_000}
    times = {"media_s": 5 / 3, "wall_s": 0.25, "x_realtime": 20 / 3}
    return Run(header, records, Summary(**totals, **times, **macs, complete=True, exit=0))


GENRES = ("rock", "jazz", "silence")
SOUNDS = ("silence", "dog\tbark", "<siren>")


@pytest.fixture
def run_of_heads(run_of_actions: Run) -> Run:
    """Two models that listen to the same sound; both know the label "silence"."""
    heads = (
        Head("cotrans", "ab" * 32, GENRES, None, 0.0, 0.5),
        Head("cosounds", "cd" * 32, SOUNDS, "silence", 0.25, 0.4),
    )
    header = replace(
        run_of_actions.header,
        model="cotrans,cosounds",
        labels=(*GENRES, *SOUNDS),
        background=None,
        rate_hz=4.0,
        source="album/track 01.flac",
        kind="audio",
        heads=heads,
    )
    records: list[Record] = []
    for i in range(4):
        for head, best in ((heads[0], i // 2), (heads[1], 1 + i % 2)):
            scores = tuple(0.8 if k == best else 0.1 for k in range(3))
            top = ((head.labels[best], 0.8), (head.labels[best - 1], 0.1))
            records.append(
                Prediction(i, (i + 1) / 4, i, 4000 * i, top, scores, None, i < 2, True, head.model)
            )
        ms = StageTimes(0.5, 1.25, 0.125, 0.0625)
        records.append(Compute(i, (i + 1) / 4, 9_640_000, 410_900_000, ms))
    records += [
        Segment(0.5, 0.75, "<siren>", 0.75, "cosounds"),
        Segment(0.75, 1.0, "dog\tbark", 0.8, "cosounds"),
        Segment(0.25, 0.75, "rock", 0.8, "cotrans"),  # began first, is known last
        Segment(0.75, 1.25, "jazz", 0.8, "cotrans"),
    ]
    summary = replace(run_of_actions.summary, steps=4, dropped=0, errors=0, drift_ppm=12.5)
    return Run(header, tuple(records), summary)


@pytest.fixture
def run_of_objects(run_of_actions: Run) -> Run:
    """A model that finds objects; segments of two labels overlap, and one is known late."""
    labels = ("person", 'car, "red"', "<dog>")
    header = replace(
        run_of_actions.header,
        model="eventful-vitdet",
        labels=labels,
        background=None,
        source="street.mp4",
        options={"tokens": 30, "dtype": "float32"},
        task=OBJECT_DETECTION,
    )
    boxes = (
        Box(0.0, 12.3456789, 640.0, 480.0, 0.91, labels[0]),
        Box(100.25, 50.5, 220.75, 90.125, 0.5, labels[1], 7),
    )
    records: list[Record] = []
    for i in range(3):
        records.append(Objects(i, i / 3, 10 * i, None if i == 1 else 512 * i, boxes[: 2 - i]))
        ms = StageTimes(0.5, 1.25, 0.125, 0.0625)
        tokens = 140 if i == 0 else 30
        records.append(Compute(i, i / 3, 9_640_000, 410_900_000, ms, tokens=tokens))
    records += [
        Segment(1 / 3, 2 / 3, labels[1], 0.5, count=1),
        Segment(0.0, 1.0, labels[0], 0.91, count=2),
    ]
    summary = replace(run_of_actions.summary, steps=3, segments=2, dropped=0, errors=0)
    return Run(header, tuple(records), summary)
