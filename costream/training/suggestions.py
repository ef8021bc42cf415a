"""Which unlabelled recordings are worth labelling next: ``costream train --suggest``.

Margin sampling (Scheffer et al., "Active hidden Markov models for information extraction", IDA
2001): the network is least certain where its two best labels are closest. Recordings for which it
gives nearly the same scores add little to each other, so only one of them is among the first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.core.clock import format_time
from costream.core.errors import SourceError
from costream.core.formatting import counted
from costream.evaluation.evaluate_settings import EvaluateSettings, load, progress, source_options
from costream.evaluation.predictions import run_alone
from costream.labels.copies import find_copies
from costream.labels.examples import Example
from costream.labels.media import Media, is_recording
from costream.runtime.stop import StopHandler
from costream.training.base import TrainSettings

log = logging.getLogger("costream")

SHOWN = 10
SMOOTHED_S = 2.0  # scores are averaged over this time
ALIKE = 0.2  # sum of differences of scores below which two recordings are alike


@dataclass(frozen=True)
class Suggestion:
    """A recording, and the scores [K] at its least certain time."""

    source: str
    time_s: float
    scores: npt.NDArray[np.float64]

    @property
    def margin(self) -> float:
        """Difference between the scores of the two best labels."""
        second, first = np.sort(self.scores)[-2:]
        return float(first - second)


def suggest(
    weights: Path, folder: Path, labelled: Sequence[str], settings: TrainSettings, stop: StopHandler
) -> list[str]:
    """Return lines that name the recordings of a folder to label next, by the trained ``weights``.

    ``labelled``: recordings with labels; they and copies are left out. Those that cannot be read
    are logged. Raises UsageError for a missing folder.
    """
    found = [medium.source for medium in Media(folder).found if is_recording(medium.source)]
    known = {str(Path(source).absolute()) for source in labelled}
    new = [source for source in found if str(Path(source).absolute()) not in known]
    for copies in find_copies([*labelled, *new]):
        keep = next((source for source in copies if source not in new), copies[0])
        new = [source for source in new if source == keep or source not in copies]
    plan = EvaluateSettings(
        model=str(weights),
        weights=None,
        data=folder,
        rate_hz=settings.rate_hz,
        layout=settings.layout,
        columns=settings.columns,
        device=settings.device,
        threads=settings.threads,
    )
    model = load(plan)
    options, card = source_options(plan, model), model.info.card
    candidates: list[Suggestion] = []
    for source in progress(new, "suggesting"):
        example = Example(source, "", 0.0, None, source, source)
        try:
            predictions = run_alone(model, example, options, settings.rate_hz, stop)
        except SourceError as error:
            log.warning("%s", error)
            continue
        if stop.requested:
            return []
        width = round(SMOOTHED_S / predictions.step_s)
        candidates.append(
            least_certain(source, predictions.times, predictions.probabilities, width)
        )
    chosen = rank(candidates)[:SHOWN]
    if not chosen:
        return [f"label next: {folder} has no other recordings"]
    lines = [f"label next ({len(chosen)} of {counted(len(candidates), 'recording')}):"]
    for one in chosen:
        best = np.argsort(-one.scores, kind="stable")[:2]
        scores = ", ".join(f"{card.labels[k]} {one.scores[k]:.2f}" for k in best)
        lines.append(f"  {one.source}  {format_time(one.time_s)}  {scores}")
    return lines


def least_certain(
    source: str,
    times: npt.NDArray[np.float64],
    scores: npt.NDArray[np.float64],
    width: int,
) -> Suggestion:
    """Return where the mean of ``width`` consecutive scores [T, K] is least certain.

    The time is the middle of these steps. A shorter recording has one mean.
    """
    width = max(1, min(width, len(scores)))
    sums = np.cumsum(np.concatenate([np.zeros_like(scores[:1]), scores]), 0)
    means = (sums[width:] - sums[:-width]) / width
    ordered = np.sort(means, 1)
    place = int((ordered[:, -1] - ordered[:, -2]).argmin())
    return Suggestion(source, float(times[place + (width - 1) // 2]), means[place])


def rank(candidates: Sequence[Suggestion]) -> list[Suggestion]:
    """Return the candidates, the least certain first, those like an earlier one at the end."""
    first: list[Suggestion] = []
    later: list[Suggestion] = []
    for one in sorted(candidates, key=lambda c: (c.margin, c.source)):
        alike = any(np.abs(one.scores - other.scores).sum() < ALIKE for other in first)
        (later if alike else first).append(one)
    return first + later
