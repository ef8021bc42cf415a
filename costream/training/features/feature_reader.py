"""Feature files with timelines as labelled rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from costream.core.errors import SourceError, UsageError
from costream.evaluation.protocols import PROTOCOLS, Protocol
from costream.labels.examples import normalise_label
from costream.labels.media import Media
from costream.labels.recording import BACKGROUNDS, Recording, frame_targets
from costream.sources.features.feature_arrays import FeatureArrays, load_features
from costream.sources.uris import sniff
from costream.training.features.feature_windows import FeatureRows

log = logging.getLogger("costream")


@dataclass(frozen=True)
class FeatureRecording:
    """A recording with its feature rows; ``times`` [T]: of each row, seconds."""

    recording: Recording
    times: npt.NDArray[np.float64]
    rate_hz: float
    content: FeatureRows


def first_features(data: Path | None) -> FeatureArrays | None:
    """Return the first feature file of a folder, or a file; None if the data are not features.

    Raises SourceError if no file can be read.
    """
    if data is None or data.suffix == ".csv" or not data.exists():
        return None
    found, errors = Media(data).found, list[SourceError]()
    for medium in found:
        try:
            if sniff(medium.source) == "features":
                return load_features(medium.source)
        except SourceError as error:
            errors.append(error)
    if errors and len(errors) == len(found):
        raise errors[0]
    return None


def find_protocol(labels: set[str]) -> Protocol | None:
    """Return the protocol whose actions these labels are, all of them; None: of none.

    Its background and the labels that it ignores may be among them.
    """
    found = {normalise_label(label) for label in labels} - set(BACKGROUNDS)
    for protocol in PROTOCOLS.values():
        actions = {normalise_label(label) for label in protocol.labels[1:]}
        others = {normalise_label(label) for label in (protocol.background, *protocol.ignored)}
        if actions <= found <= actions | others:
            return protocol
    return None


def read_rows(
    recordings: Sequence[Recording],
    labels: Sequence[str],
    width: int,
    rate_hz: float | None,
    default_hz: float,
) -> list[FeatureRecording]:
    """Return the recordings with their rows and labels, each row by the middle of its time.

    ``width``: values of a row. ``rate_hz``: rows per second of files that do not store them; None:
    ``default_hz``, which is reported. Rows with NaN or infinite values, and those after the end of
    the labels, are left out. Raises SourceError, and UsageError if rates or widths differ.
    """
    out: list[FeatureRecording] = []
    rates: dict[float, str] = {}
    is_told = False
    for recording in recordings:
        features = load_features(recording.source)
        if features.width != width:
            what = f"rows of {features.width} values, those of other files have {width}"
            raise UsageError(what, where=recording.source)
        if features.note is not None:
            log.warning("%s: %s", recording.source, features.note)
        rate = features.rate_hz or rate_hz or default_hz
        if features.rate_hz is None and rate_hz is None and not is_told:
            log.warning("the files have no times: %g rows per second (--fps changes it)", rate)
            is_told = True
        rates.setdefault(rate, recording.source)
        out.append(_labelled(recording, features, rate, labels))
    if len(rates) > 1:
        listed = ", ".join(f"{rate:g} ({source})" for rate, source in rates.items())
        raise UsageError(f"files of different rows per second: {listed}")
    return out


def _labelled(
    recording: Recording, features: FeatureArrays, rate_hz: float, labels: Sequence[str]
) -> FeatureRecording:
    count = features.rows
    times = np.arange(count) / rate_hz if features.times is None else features.times[:count]
    parts = [np.asarray(part[:count], np.float32) for part in features.parts]
    rows = np.concatenate(parts, 1)
    kept = np.isfinite(rows).all(1)
    if not kept.all():
        lost = int((~kept).sum())
        log.warning("%s: %d row(s) with NaN or infinite values, left out", recording.source, lost)
    middles = times + 0.5 / rate_hz
    if recording.duration_s is not None:
        kept &= middles < recording.duration_s
    rows, times, middles = rows[kept], times[kept], middles[kept]
    targets = frame_targets(recording, middles, labels, labels[0])
    content = FeatureRows(torch.from_numpy(rows), torch.from_numpy(targets).float())
    return FeatureRecording(recording, times, rate_hz, content)
