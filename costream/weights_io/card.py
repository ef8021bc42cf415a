"""Model cards: description, origin and accuracy of a weight file.

A card is JSON in the safetensors metadata under the key ``card``. Reading one does not need
torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypedDict

from costream.core.declared import (
    MAX_NUMBER,
    NotNegative,
    Number,
    Positive,
    Probability,
    convert,
)
from costream.core.errors import ModelError
from costream.core.records import AUDIO_TAGGING, OBJECT_DETECTION, THRESHOLD, Thresholds

# What weights may be used for, see ``licences.py``.
LicenceClass: TypeAlias = Literal["free", "non-commercial", "research"]
UNTRAINED = "nothing, random weights"  # how ``trained_on`` begins for untrained weights


SHORT_S = 1.0  # shorter recordings have thresholds of their own


@dataclass(frozen=True)
class Timeline(Thresholds):
    """Settings for turning per-step probabilities into segments (``runtime/segments.py``)."""

    threshold: Probability = THRESHOLD  # a label opens at this probability ...
    low: NotNegative | None = None  # ... and closes below this one; None = 0.6 x threshold
    min_length_s: NotNegative = 0.5  # shorter segments are dropped
    min_gap_s: NotNegative = 0.5  # segments of a label at most this far apart are merged
    thresholds: dict[str, Probability] = field(default_factory=dict)  # of single labels
    smooth_s: NotNegative = 0.0  # time constant of ``hysteresis.Smoother``; 0: no smoothing
    presence_s: NotNegative = 0.0  # of the average that has to reach the threshold: 1 - background
    short: Probability | None = (
        None  # threshold for all of data shorter than SHORT_S; None: as it is
    )

    def of_length(self, length_s: float | None) -> Timeline:
        """Return the settings for data of this length; None: unknown.

        Labels with thresholds of their own keep them.
        """
        if self.short is None or length_s is None or length_s >= SHORT_S:
            return self
        low = None if self.low is None else min(self.low, self.short)
        return replace(self, threshold=self.short, low=low, short=None)


@dataclass(frozen=True)
class Familiarity:
    """How familiar an input is to a network, from 0 to 1, computed from its logits.

    The energy, log(sum(exp(logits of the events))), is higher for kinds of input that were learnt
    (Liu et al., Energy-based out-of-distribution detection, NeurIPS 2020). The familiarity is its
    logistic function.
    """

    centre: Number  # energy at which the familiarity is 0.5
    scale: Positive  # change of the energy that multiplies the odds by e
    limit: Number = 0.5  # below it, predictions are unreliable
    rest: str | None = None  # the event that stands for everything else, which is left out
    hint: str = ""  # message below the limit: what was learnt, what to use instead


class Costs(TypedDict, total=False):
    """Cost of a step."""

    macs: Number | None  # multiply-accumulates
    dense_macs: Number | None  # of the network without continual computation
    ms: Number | None  # on ``machine``
    machine: str | None


class Sample(TypedDict, total=False):
    """A recording and the results of the model on it, see ``evaluation/sample.py``."""

    file: str | None
    sha256: str | None
    end_s: Number | None
    tolerance: Number | None
    truth: list[list[Number | str | None]] | None
    metrics: dict[str, Number] | None


class Compression(TypedDict, total=False):
    """What was adapted, pruned or quantised."""

    density: Number | None  # share of the weights that are left
    rank: Number | None  # of the adapter
    macs: Number | None
    macs_before: Number | None
    adapter: str | None
    base: str | None  # digest of the weights that an adapter belongs to
    frozen: str | None
    pruned: list[str] | None  # modules that are narrower than the arguments of the network
    int8: dict[str, Any] | None


@dataclass(frozen=True)
class Card:
    """Metadata of a weight file, for runs and for users."""

    name: str
    task: str  # "online action detection", "encoder", ...
    architecture: str  # a name of models.spec.MODELS
    arguments: dict[str, Any]  # keyword arguments of the architecture
    labels: tuple[str, ...]
    rate_hz: NotNegative  # steps per second in training; 0: of an encoder
    delay_s: Number = 0.0
    background: str | None = None  # the label that is not an event
    frontend: str | None = None  # a key of models.frontend.FRONTENDS; None: features only
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    gap_tolerance_s: Positive = 1.0  # a longer time without data resets the state
    timeline: Timeline = field(default_factory=Timeline)
    familiarity: Familiarity | None = None  # None: not measured
    temperature: Positive = 1.0  # of a classifier: divides its logits (Guo et al., ICML 2017)
    description: str = ""
    paper: str = ""
    trained_on: str = ""
    split: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)  # of a step: Costs, and other facts
    sample: dict[str, Any] = field(default_factory=dict)  # Sample, and other facts
    compression: dict[str, Any] = field(default_factory=dict)  # Compression, and other facts
    limits: str = ""  # what the model cannot do
    licence: str = ""
    licence_class: LicenceClass | None = None  # what the weights may be used for; None: unknown

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

    @property
    def multilabel(self) -> bool:
        """Whether each label has an independent probability, so that several may be present."""
        return self.task == AUDIO_TAGGING

    def to_json(self) -> str:
        """Return the card as JSON, with keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Return the card in a JSON text; unknown keys are ignored. ModelError if it is invalid."""
        try:
            card = convert(json.loads(text), cls)
            _check(card)
            return card
        except (ValueError, RecursionError) as error:
            raise ModelError(f"the model card cannot be read ({error})") from error


# Fields that hold any facts, and the types of those that programs read.
_FACTS: dict[str, Any] = {"costs": Costs, "sample": Sample, "compression": Compression}


def _check(card: Card) -> None:
    """Raise ValueError for values that are impossible together."""
    if card.rate_hz == 0 and card.labels:
        raise ValueError("rate_hz 0 is not a number above 0")
    if card.background is not None and card.background not in card.labels:
        raise ValueError(f"background {card.background!r} is not a label")
    for name, kind in _FACTS.items():
        try:
            convert(getattr(card, name), kind)
        except ValueError as error:
            raise ValueError(f"{name}.{error}") from error
    for name in ("arguments", "frontend_arguments", "metrics", *_FACTS):
        _check_numbers(getattr(card, name), name)
    _check_timeline(card)
    familiarity = card.familiarity
    if familiarity is not None and familiarity.rest not in (None, *card.labels):
        raise ValueError(f"familiarity.rest {familiarity.rest!r} is not a label")


def _check_numbers(value: Any, name: str) -> None:
    """Raise ValueError for a number that is not finite, or too large for a computation."""
    if isinstance(value, (int, float)) and not abs(value) <= MAX_NUMBER:
        raise ValueError(f"{name} {value!r:.80} is not a number of usual size")
    if isinstance(value, dict):
        for key, part in value.items():
            _check_numbers(part, f"{name}.{key}")
    elif isinstance(value, (list, tuple)):
        for part in value:
            _check_numbers(part, name)


def _check_timeline(card: Card) -> None:
    """Raise ValueError for a timeline that does not fit its card."""
    timeline = card.timeline
    if timeline.low is not None and timeline.low > timeline.threshold:
        raise ValueError(f"timeline.low {timeline.low} is above timeline.threshold")
    exclusive = not (card.multilabel or card.finds_objects)
    if timeline.presence_s and (card.background is None or not exclusive):
        raise ValueError("timeline.presence_s needs a background that excludes the other labels")
    unknown = set(timeline.thresholds) - set(card.labels)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ValueError(f"timeline.thresholds has {names}, which is not a label")


def card_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of model cards."""
    from costream.core.schema import schema_of  # only here, because cards are read at every start

    schema = schema_of(Card, described=(Card, Timeline, Familiarity, *_FACTS.values()))
    fields = schema["$defs"]["Card"]["properties"]
    for name, kind in _FACTS.items():
        fields[name] = {**fields[name], "$ref": f"#/$defs/{kind.__name__}"}
    return schema
