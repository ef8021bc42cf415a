"""Benchmark of budget control: a film that is paused or plays, on an idle and a busy machine."""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np
import numpy.typing as npt

from costream.core.errors import SourceError
from costream.core.records import AudioBlock, Box, VideoFrame
from costream.core.tables import Cell, Table
from costream.evaluation.metrics.detection import DetectedBoxes, Truth, detection_scores
from costream.models.base import Model
from costream.options.budget import Budget
from costream.options.values import ALL_TOKENS
from costream.runtime.budget import check_budget, controller
from costream.runtime.tracking import Corners, corners_of
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source

SETTLING = 10  # steps not counted: the controller has no measurements yet
TOLERANCE = 0.15
STRETCHES = ("quiet", "quiet, busy machine", "busy, busy machine", "busy")
_NOISE = 1.0  # grey levels, standard deviation; the difference of two is below detectors' gates
_HISS = 1e-4  # of full scale, the same of sound
_LOAD = "import numpy\na = numpy.ones((1000, 1000))\nwhile True: a @ a"


@dataclass(frozen=True)
class Step:
    """Cost and detections of a step, and the dense network's detections in the same frame."""

    stretch: str
    cost: float  # in the budget's unit
    tokens: int | None  # None: the model has none
    macs: int
    dense_macs: int
    found: tuple[Box, ...]
    dense: tuple[Box, ...]


def budget_trace(uri: str, model: Model, budget: Budget, steps: int = 240) -> list[Step]:
    """Run a model within a budget through four stretches of equal length; return its steps.

    The frames of the video are taken at the rate of the model, whatever that of the video is.

    The first two repeat the first frame of the video ``uri``, or the first block of the sound, with
    noise; the others play it. In the second and third another process keeps a core busy. Raises
    SourceError when it is too short for half of ``steps``, UsageError for a budget of operations
    that is less than what each step of the model takes.
    """
    check_budget(model, budget)
    throttle = controller(model, budget, model.info.card.rate_hz)
    assert throttle is not None
    frames = _frames(uri, model, steps)
    least = model.info.card.timeline.threshold_of
    dense = [
        tuple(b for b in boxes if b.score >= least(b.label)) for boxes in _dense(model, frames)
    ]
    state, trace = model.init_state(1), []
    if model.info.by_place:
        state.tokens = ALL_TOKENS  # else many budgets are more than what is needed
    for stretch, numbers in groupby(range(steps), key=lambda k: STRETCHES[4 * k // steps]):
        with _load("busy machine" in stretch):
            for k in numbers:
                throttle.before(state)
                result = model.step([frames[k]], state)
                throttle.after(result)
                spent_ms = 1e3 * (result.frontend_s + result.network_s)
                trace.append(
                    Step(
                        stretch,
                        result.macs if budget.unit == "macs" else spent_ms,
                        None if result.updated is None else int(result.updated[0].sum()),
                        result.macs,
                        result.dense_macs,
                        () if result.objects is None else result.objects[0],
                        dense[k],
                    )
                )
    return trace


def budget_table(trace: Sequence[Step], budget: Budget, target: float, title: str) -> Table:
    """Return the summary of a trace, per stretch and overall; ``target``: in the budget's unit."""
    settled = trace[SETTLING:]
    unit, word = _unit(budget)
    rows = [
        _row(name, [step for step in settled if step.stretch == name], target, unit)
        for name in STRETCHES
    ]
    columns = (
        "stretch",
        "steps",
        "mean to target",
        f"within {TOLERANCE:.0%}",
        *(f"{what} {word}" for what in ("p10", "median", "p90")),
        "tokens",
        "of dense MACs",
        "AP50",
    )
    notes = (
        f"target {target / unit:g} {word} per step ({budget.text}), without the first"
        f" {SETTLING} steps. Models without tokens keep it on average, and spend less where nothing"
        " moves, or take the same for each step. AP50: with the dense network's detections as"
        " ground truth.",
    )
    return Table(title, columns, (*rows, _row("all", settled, target, unit)), notes)


def _unit(budget: Budget) -> tuple[float, str]:
    """Return the divisor for displayed costs, and their unit."""
    return (1e6, "MMAC") if budget.unit == "macs" else (1.0, "ms")


def _row(name: str, steps: Sequence[Step], target: float, unit: float) -> tuple[Cell, ...]:
    costs = [step.cost / unit for step in steps]
    low, middle, high = np.percentile(costs, (10, 50, 90)).tolist()
    tokens = [step.tokens for step in steps if step.tokens is not None]
    near = [abs(step.cost / target - 1) <= TOLERANCE for step in steps]
    return (
        name,
        len(steps),
        round(statistics.fmean(costs) * unit / target, 2),
        f"{sum(near) / len(near):.0%}",
        low,
        middle,
        high,
        round(statistics.median(tokens)) if tokens else None,
        f"{sum(s.macs for s in steps) / sum(s.dense_macs for s in steps):.0%}",
        _precision(steps),
    )


def _precision(steps: Sequence[Step]) -> float | None:
    """Return AP50 with dense detections as ground truth; None where there are none."""
    labels = sorted({box.label for step in steps for box in step.dense})
    known = {label: k for k, label in enumerate(labels)}
    found = [DetectedBoxes(*_arrays(step.found, known)) for step in steps]
    truth = []
    for step in steps:
        boxes, _, classes = _arrays(step.dense, known)
        truth.append(Truth(boxes, classes))
    return float(str(detection_scores(found, truth, labels)["AP50"])) if labels else None


def _arrays(
    boxes: Sequence[Box], known: dict[str, int]
) -> tuple[Corners, npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return boxes [n, 4], scores [n] and class indices [n], -1 for a label not in ``known``."""
    scores = np.array([b.score for b in boxes], np.float64)
    return corners_of(boxes), scores, np.array([known.get(b.label, -1) for b in boxes], np.int64)


def _frames(uri: str, model: Model, steps: int) -> list[VideoFrame | AudioBlock]:
    """Return the frames, or blocks of sound, of all steps."""
    source = open_source(uri, SourceOptions(box=model.info.box, sound=model.info.sound))
    try:
        source.open()
        items = (item for item in source.items() if isinstance(item, VideoFrame | AudioBlock))
        running = [
            _held(item, item.rgb) if isinstance(item, VideoFrame) else item
            for item in islice(items, steps - steps // 2)
        ]
    finally:
        source.close()
    if len(running) < steps - steps // 2:
        raise SourceError(f"has fewer than {steps - steps // 2} steps", where=uri)
    rng = np.random.default_rng(0)
    quiet = [_noisy(running[0], rng) for _ in range(steps // 2)]
    rate_hz = model.info.card.rate_hz
    return [replace(frame, time_s=k / rate_hz) for k, frame in enumerate([*quiet, *running])]


def _noisy(item: VideoFrame | AudioBlock, rng: np.random.Generator) -> VideoFrame | AudioBlock:
    if isinstance(item, AudioBlock):
        hiss = rng.normal(0, _HISS, item.samples.shape).astype(np.float32)
        return replace(item, samples=item.samples + hiss)
    noisy = item.rgb + rng.normal(0, _NOISE, item.rgb.shape)
    return _held(item, noisy.round().clip(0, 255).astype(np.uint8))


def _held(frame: VideoFrame, pixels: npt.NDArray[np.uint8]) -> VideoFrame:
    return replace(frame, convert=lambda: pixels, arrived_s=None)


def _dense(model: Model, frames: Sequence[VideoFrame | AudioBlock]) -> list[tuple[Box, ...]]:
    """Return the detections when every frame is computed in full; none of other models."""
    if not model.info.card.finds_objects:
        return [()] * len(frames)
    state, found = model.init_state(1), []
    for frame in frames:
        objects = model.step([frame], state).objects
        found.append(() if objects is None else objects[0])
    return found


@contextmanager
def _load(wanted: bool) -> Iterator[None]:
    """Keep a core busy with matrix products meanwhile."""
    if not wanted:
        yield
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", _LOAD], env=environment)
    try:
        yield
    finally:
        child.kill()
        child.wait()


def draw(trace: Sequence[Step], budget: Budget, target: float) -> bytes:
    """Return a PNG plot of the cost of every step, their mean, the target, and the tokens.

    Of a model without tokens it has the share of the operations instead.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    unit, word = _unit(budget)
    above.plot([step.cost / unit for step in trace], ".", markersize=3, color="#0072b2")
    newest = [[s.cost / unit for s in trace[max(0, k - 20) : k + 1]] for k in range(len(trace))]
    means = [statistics.fmean(costs) for costs in newest]
    above.plot(means, color="#0072b2", label="mean of 21 steps")
    above.axhline(target / unit, color="#d55e00")
    low, high = ((1 + sign * TOLERANCE) * target / unit for sign in (-1, 1))
    above.axhspan(low, high, color="#d55e00", alpha=0.15, label=f"target ±{TOLERANCE:.0%}")
    above.set_ylabel(word)
    above.set_ylim(0, 2 * target / unit)
    above.legend(loc="upper right")
    has_tokens = all(step.tokens is not None for step in trace)
    computed = [step.tokens if has_tokens else step.macs / step.dense_macs for step in trace]
    below.step(range(len(trace)), computed, where="mid", color="#009e73")
    below.set_ylabel("tokens" if has_tokens else "of dense MACs")
    below.set_xlabel("step")
    for stretch, part in groupby(enumerate(trace), key=lambda pair: pair[1].stretch):
        numbers = [k for k, _ in part]
        above.axvline(numbers[0], color="#999999", linewidth=0.5)
        above.text(numbers[0] + 1, 0.03 * target / unit, stretch, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    return out.getvalue()
