"""Metrics of a model on a shipped sample, which its card states and ``verify`` reproduces.

A card's ``sample`` holds ``file`` (in ``samples_folder``) with its ``sha256``, ``end_s`` if only
its beginning is run, ``truth`` as [start_s, end_s, label] (None: no object), the ``metrics`` and
the ``tolerance`` within which other machines reproduce them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from costream.core.errors import CostreamError, ModelError
from costream.core.records import Objects, Prediction, Record
from costream.evaluation.predictions import CostCollector
from costream.models.base import Model
from costream.models.catalogue import load_model, read_model
from costream.options.options import Options
from costream.runtime.options import source_options
from costream.runtime.pipeline import run
from costream.runtime.segments import best_scores
from costream.sources.uris import open_source
from costream.weights_io.store import samples_folder

TOLERANCE = 0.02  # processors and decoder versions round differently
_LEAST = 1e-6  # least probability in the logarithm
SampleTruth: TypeAlias = Sequence[Sequence[Any]]  # start_s, end_s, label


@dataclass(frozen=True)
class Measured:
    """Metrics and costs measured on a sample."""

    metrics: dict[str, float]  # accuracy: share of steps; log_loss: mean of -ln p of the truth
    macs: int  # median per step, frontend included
    dense_macs: int
    ms: float  # per step, in the fastest tenth, which excludes other load of the machine


def measure(model: Model, path: Path, truth: SampleTruth, end_s: float | None = None) -> Measured:
    """Run a model over a sample, as ``detect`` and ``listen`` do, and score every step.

    A step refers to the time ``delay_s`` before it. For an object detector the probability of a
    label is the best score of its boxes; if no box reaches the threshold, no object is predicted.
    Boxes of labels that ``truth`` never names, such as furniture, do not count.

    Raises the errors of a run.
    """
    card, sink = model.info.card, _run(model, path, end_s)
    detects = card.finds_objects
    rows = np.array(sink.rows, np.float64)
    labels: list[str | None] = list(card.labels)
    predicted = rows.argmax(1)
    if detects:
        named = {segment[2] for segment in truth}
        rows = rows * np.array([label in named for label in labels])
        nothing = 1.0 - rows.max(1, initial=0.0, keepdims=True)
        seen = rows.max(1) >= card.timeline.threshold
        predicted = np.where(seen, rows.argmax(1), len(labels))
        rows, labels = np.hstack([rows, nothing]), [*labels, None]
    starts = [segment[0] for segment in truth]
    moments = np.array(sink.times) - card.delay_s
    places = np.searchsorted(starts, moments + 1e-9, side="right") - 1
    true = np.array([labels.index(truth[max(0, k)][2]) for k in places])
    probability = rows[np.arange(len(true)), true]
    metrics = {
        "accuracy": float((predicted == true).mean()),
        "log_loss": float(-np.log(probability.clip(_LEAST)).mean()),
    }
    macs, dense_macs = (round(float(np.median(v))) for v in (sink.macs, sink.dense_macs))
    # Mean over ten steps: every other step of a strided network is a cheap one.
    groups = np.array_split(sink.ms, max(1, len(sink.ms) // 10))
    ms = float(np.percentile([group.mean() for group in groups], 10))
    return Measured(metrics, macs, dense_macs, ms)


def sample_scores(
    model: Model, folder: Path | None = None, most_s: float | None = None
) -> npt.NDArray[np.float64] | None:
    """Return the scores [T, K] of a model for the sample of its card; None if it is not here.

    ``most_s``: for its beginning only.
    """
    sample = model.info.card.sample
    path = (folder or samples_folder()) / str(sample.get("file", ""))
    if "sha256" not in sample or _unlike(path, sample["sha256"]) is not None:
        return None
    ends_s = [s for s in (sample.get("end_s"), most_s) if s is not None]
    return np.array(_run(model, path, min(ends_s, default=None)).rows, np.float64)


def _run(model: Model, path: Path, end_s: float | None) -> _Collector:
    """Run a model over a file, or its beginning, as ``detect`` does; return what it found."""
    sink, options = _Collector(model), source_options(Options(end_s=end_s), model)
    threshold = _LEAST if model.info.card.finds_objects else None
    run_options = Options(scores=True, threshold=threshold)
    run(open_source(str(path), options), model, [sink], options=run_options)
    return sink


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reproduce(weights: str | Path, folder: Path | None = None) -> dict[str, Any] | None:
    """Measure the metrics of a card's sample again, on the CPU.

    Returns ``file`` and ``metrics`` as measured now, or None for them with a ``reason`` if the
    sample is not in the folder (default: ``samples_folder``); None for a card without a sample.
    Raises ModelError if the metrics differ or cannot be measured.
    """
    sample = read_model(str(weights)).card.sample
    if not sample:
        return None
    model = load_model(str(weights), device="cpu")
    try:
        path = (folder or samples_folder()) / sample["file"]
        reason = _unlike(path, sample["sha256"])
        if reason is not None:
            return {"file": sample["file"], "metrics": None, "reason": reason}
        measured = measure(model, path, sample["truth"], sample["end_s"])
        stated, tolerance = sample["metrics"], sample["tolerance"]
        wrong = [
            f"{name} {measured.metrics[name]:.3f}, not {value:.3f}"
            for name, value in stated.items()
            if not abs(measured.metrics[name] - value) <= tolerance
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(f"the sample of its card cannot be used ({error!r})") from error
    except CostreamError as error:
        raise ModelError(f"does not run on {sample['file']} ({error})", where=weights) from error
    if wrong:
        raise ModelError(
            f"differs from its card: on {sample['file']} {', '.join(wrong)}", where=weights
        )
    return {"file": sample["file"], "metrics": measured.metrics, "reason": None}


def _unlike(path: Path, sha256: str) -> str | None:
    """Return why a file is not the sample of a card; None if it is."""
    if not path.is_file():
        return f"{path.name} is not here"
    return None if digest(path) == sha256 else f"{path.name} differs from the card's sample"


class _Collector(CostCollector):
    """A sink that collects the scores and costs of each step."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._labels = model.info.card.labels
        self.times: list[float] = []
        self.rows: list[Sequence[float] | npt.NDArray[np.float32]] = []  # [T, K]

    def write(self, record: Record) -> None:
        """Store scores and costs."""
        super().write(record)
        if isinstance(record, Prediction) and record.scores is not None:
            self.times.append(record.time_s)
            self.rows.append(record.scores)
        elif isinstance(record, Objects):
            self.times.append(record.time_s)
            self.rows.append(best_scores(record.boxes, self._labels))
