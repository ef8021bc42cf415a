"""Standard protocols for frame metrics of online action detection.

They define the labels and the scored frames. They follow the released code of OadTR and CoOadTR
(Wang et al., ICCV 2021; Hedegaard et al., ICLR 2023), whose networks look back over 64 rows and
ahead over 8: rows 63 to T - 10 of a video of T rows are scored. Mean average precision is over
the actions, without the background. Frames labelled Ambiguous in THUMOS14 do not count, and
that class is removed before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.label_sets import THUMOS14, TVSERIES
from costream.labels.examples import normalise_label


@dataclass(frozen=True)
class PaperFigure:
    """The figure of a paper; see ``Protocol.measure``."""

    network: str
    features: str  # what the network that computed them was trained on
    value: float
    source: str


@dataclass(frozen=True)
class Protocol:
    """Labels and frames of a protocol."""

    name: str
    labels: tuple[str, ...]  # scored labels; the first is the background
    ignored: tuple[str, ...] = ()  # labels of the data whose frames do not count
    first: int = 63  # first scored row, from 0
    tail: int = 9  # rows at the end that are not scored
    measure: str = "mAP"  # key of the figure that papers report
    published: tuple[PaperFigure, ...] = ()  # on the complete test part

    @property
    def background(self) -> str:
        """The background label."""
        return self.labels[0]

    def columns(self, labels: Sequence[str], model: str) -> list[int]:
        """Return the indices of the protocol's labels among a model's labels.

        Spelling is compared as in ``fit_truth``. UsageError for a model with other labels.
        """
        places = {normalise_label(label): k for k, label in enumerate(labels)}
        known = {normalise_label(label) for label in (*self.labels, *self.ignored)}
        missing = [label for label in self.labels if normalise_label(label) not in places]
        foreign = [label for label in labels if normalise_label(label) not in known]
        if missing or foreign:
            what = f"lacks {missing[0]!r}" if missing else f"has {foreign[0]!r}"
            raise UsageError(
                f"the labels of {model} differ from those of {self.name}: it {what}",
                where="--protocol",
                hint="import it with --config labels=thumos14 or labels=tvseries",
            )
        return [places[normalise_label(label)] for label in self.labels]

    def rows(self, steps: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
        """Return which of these rows of a video of ``count`` rows are scored."""
        inside: npt.NDArray[np.bool_] = (steps >= self.first) & (steps < count - self.tail)
        return inside


def kept(probabilities: npt.NDArray[np.float64], columns: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return the softmax over some classes from that over all: [T, K] to [T, len(columns)]."""
    part = probabilities[:, columns]
    if len(columns) == probabilities.shape[1]:
        return part
    return np.asarray(part / np.maximum(part.sum(1, keepdims=True), 1e-300), np.float64)


_ANET, _KINETICS = "ActivityNet", "Kinetics"
_OADTR, _CONTINUAL = "Wang et al., ICCV 2021", "Hedegaard et al., ICLR 2023"
_MINIROAD = "An et al., ICCV 2023"
PROTOCOLS = {
    "thumos14": Protocol(
        "THUMOS14",
        THUMOS14.names[:-1],
        THUMOS14.names[-1:],
        published=(
            PaperFigure("OadTR", _ANET, 0.583, _OADTR),
            PaperFigure("OadTR", _KINETICS, 0.652, _OADTR),
            PaperFigure("CoOadTR, one block", _ANET, 0.561, _CONTINUAL),
            PaperFigure("CoOadTR, one block", _KINETICS, 0.642, _CONTINUAL),
            PaperFigure("CoOadTR, two blocks", _ANET, 0.568, _CONTINUAL),
            PaperFigure("CoOadTR, two blocks", _KINETICS, 0.644, _CONTINUAL),
            PaperFigure("MiniROAD", _KINETICS, 0.718, _MINIROAD),
        ),
    ),
    "tvseries": Protocol(
        "TVSeries",
        TVSERIES.names,
        measure="calibrated_mAP",
        published=(
            PaperFigure("CoOadTR, one block", _ANET, 0.876, _CONTINUAL),
            PaperFigure("CoOadTR, one block", _KINETICS, 0.877, _CONTINUAL),
            PaperFigure("CoOadTR, two blocks", _ANET, 0.877, _CONTINUAL),
            PaperFigure("CoOadTR, two blocks", _KINETICS, 0.876, _CONTINUAL),
            PaperFigure("MiniROAD", _KINETICS, 0.896, _MINIROAD),
        ),
    ),
}
