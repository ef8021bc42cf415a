"""Model cards: description, origin and accuracy of a weight file.

A card is JSON in the safetensors metadata under the key ``card``. Reading one does not need
torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from costream.errors import ModelError
from costream.records import OBJECT_DETECTION, THRESHOLD, Thresholds

UNTRAINED = "nothing, random weights"  # how ``trained_on`` begins for untrained weights


@dataclass(frozen=True)
class Timeline(Thresholds):
    """Settings for turning per-step probabilities into segments (``runtime/segments.py``)."""

    threshold: float = THRESHOLD  # a label opens at this probability ...
    low: float | None = None  # ... and closes below this one; None = 0.6 x threshold
    min_length_s: float = 0.5  # shorter segments are dropped
    min_gap_s: float = 0.5  # segments of a label at most this far apart are merged
    thresholds: dict[str, float] = field(default_factory=dict)  # of labels with their own threshold
    smooth_s: float = 0.0  # time constant of ``runtime/smoothing.py``; 0: no smoothing


@dataclass(frozen=True)
class Card:
    """Metadata of a weight file, for runs and for users."""

    name: str
    task: str  # "online action detection", "encoder", ...
    architecture: str  # a name of models.spec.MODELS
    arguments: dict[str, Any]  # keyword arguments of the architecture
    labels: tuple[str, ...]
    rate_hz: float  # steps per second in training
    delay_s: float = 0.0
    background: str | None = None  # the label that is not an event
    frontend: str | None = None  # a key of frontends.base.FRONTENDS; None: features only
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    gap_tolerance_s: float = 1.0  # a longer time without data resets the state
    timeline: Timeline = field(default_factory=Timeline)
    temperature: float = 1.0  # of a classifier: divides its logits (Guo et al., ICML 2017)
    description: str = ""
    paper: str = ""
    trained_on: str = ""
    split: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)  # per step: macs, dense_macs, ms, machine
    sample: dict[str, Any] = field(default_factory=dict)  # see evaluation/sample.py
    limits: str = ""  # known limitations
    licence: str = ""

    @property
    def untrained(self) -> bool:
        """Whether the network has random weights, so that its output is meaningless."""
        return self.trained_on.startswith(UNTRAINED)

    @property
    def events(self) -> tuple[str, ...]:
        """The labels without the background."""
        return tuple(label for label in self.labels if label != self.background)

    @property
    def finds_objects(self) -> bool:
        """Whether the model outputs boxes, not the scores of labels."""
        return self.task == OBJECT_DETECTION

    def to_json(self) -> str:
        """Return the card as JSON, with keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Return the card in a JSON text; unknown keys are ignored. ModelError if it is invalid."""
        try:
            raw = json.loads(text)
            values = _known(cls, raw)
            values["labels"] = tuple(values["labels"])
            values["timeline"] = Timeline(**_known(Timeline, values.get("timeline", {})))
            card = cls(**values)
            _check(card)
            return card
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"the model card cannot be read ({error})") from error


def _known(of: type[Any], raw: dict[str, Any]) -> dict[str, Any]:
    """Return the values for which a dataclass has a field."""
    names = {f.name for f in dataclasses.fields(of)}
    return {k: v for k, v in raw.items() if k in names}


def _check(card: Card) -> None:
    """Raise ValueError for invalid values."""
    if not 0 < card.temperature < math.inf:
        raise ValueError(f"temperature {card.temperature} is not a positive number")
    unknown = set(card.timeline.thresholds) - set(card.labels)
    if unknown:
        raise ValueError(f"threshold for {', '.join(sorted(unknown))}, which is not a label")
