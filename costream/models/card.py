"""The model card: what a weight file is, where it comes from and how far to trust it.

It travels as JSON in the safetensors metadata under the key ``card``. No torch is needed to
read one.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from costream.errors import ModelError

LOW = 0.6  # of the threshold, where a timeline does not say what is low
UNTRAINED = "nothing, random weights"  # what such weights are trained on


@dataclass(frozen=True)
class Timeline:
    """How per-step probabilities become segments (``runtime/segments.py``)."""

    threshold: float = 0.5  # a label opens at this probability ...
    low: float | None = None  # ... and closes below this one; None = 0.6 x threshold
    min_length_s: float = 0.5  # shorter segments are left out
    min_gap_s: float = 0.5  # the same label again within this time is one segment
    thresholds: dict[str, float] = field(default_factory=dict)  # of labels with one of their own
    smooth_s: float = 0.0  # time constant of ``runtime/smoothing.py``; 0: scores as they are

    def threshold_of(self, label: str) -> float:
        """Give the probability at which a label opens."""
        return self.thresholds.get(label, self.threshold)

    def low_of(self, label: str) -> float:
        """Give the probability below which a label closes, in proportion to its threshold."""
        if self.low is None:
            return LOW * self.threshold_of(label)
        if label not in self.thresholds:
            return self.low
        return self.low / self.threshold * self.thresholds[label]


@dataclass(frozen=True)
class Card:
    """Everything a run must know about its weights, and everything a user should."""

    name: str
    task: str  # "online action detection", "encoder", ...
    architecture: str  # a key of models.registry.ARCHITECTURES
    arguments: dict[str, Any]  # keyword arguments of the architecture
    labels: tuple[str, ...]
    rate_hz: float  # steps a second the model was trained at
    delay_s: float = 0.0
    background: str | None = None  # the label that is no event
    frontend: str | None = None  # a key of frontends.registry.FRONTENDS; None: features only
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    gap_tolerance_s: float = 1.0  # a longer time without data resets the state
    timeline: Timeline = field(default_factory=Timeline)
    temperature: float = 1.0  # of a classifier: divides its logits (Guo et al., ICML 2017)
    description: str = ""
    paper: str = ""
    trained_on: str = ""
    split: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)  # of a step: macs, dense_macs, ms, machine
    sample: dict[str, Any] = field(default_factory=dict)  # see evaluation/sample.py
    limits: str = ""  # what the model cannot do
    licence: str = ""

    @property
    def untrained(self) -> bool:
        """Whether the network has random weights, so that what it says means nothing."""
        return self.trained_on.startswith(UNTRAINED)

    def to_json(self) -> str:
        """Give the card as JSON text, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read a card; unknown keys are ignored. ModelError when it is not a card."""
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
    """Give the values that a dataclass has a field for."""
    names = {f.name for f in dataclasses.fields(of)}
    return {k: v for k, v in raw.items() if k in names}


def _check(card: Card) -> None:
    """Raise ValueError for what cannot be true of any model."""
    if not 0 < card.temperature < math.inf:
        raise ValueError(f"a temperature of {card.temperature}")
    unknown = set(card.timeline.thresholds) - set(card.labels)
    if unknown:
        raise ValueError(f"a threshold of {', '.join(sorted(unknown))}, which is no label")
