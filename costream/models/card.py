"""The model card: what a weight file is, where it comes from and how far to trust it.

It travels as JSON in the safetensors metadata under the key ``card``. No torch is needed to
read one.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from costream.errors import ModelError


@dataclass(frozen=True)
class Timeline:
    """How per-step probabilities become segments (``runtime/segments.py``)."""

    threshold: float = 0.5  # a label opens at this probability ...
    low: float | None = None  # ... and closes below this one; None = 0.6 x threshold
    min_length_s: float = 0.5  # shorter segments are left out
    min_gap_s: float = 0.5  # the same label again within this time is one segment


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
    description: str = ""
    paper: str = ""
    trained_on: str = ""
    split: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)  # of a step: macs, dense_macs, ms, machine
    sample: dict[str, Any] = field(default_factory=dict)  # see evaluation/sample.py
    limits: str = ""  # what the model cannot do
    licence: str = ""

    def to_json(self) -> str:
        """Give the card as JSON text, keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Read a card; unknown keys are ignored. ModelError when it is not a card."""
        try:
            raw = json.loads(text)
            known = {f.name for f in dataclasses.fields(cls)}
            values = {k: v for k, v in raw.items() if k in known}
            values["labels"] = tuple(values["labels"])
            values["timeline"] = Timeline(**values.get("timeline", {}))
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"the model card cannot be read ({error})") from error
