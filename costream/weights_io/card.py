"""Model cards: description, origin and accuracy of a weight file.

A card is JSON in the safetensors metadata under the key ``card``. Reading one does not need
torch.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from costream.core.errors import ModelError
from costream.core.records import AUDIO_TAGGING, OBJECT_DETECTION, THRESHOLD, Thresholds

_MOST = 1e18  # of any number
_WORDS = dict.fromkeys(("temperature", "rate_hz", "gap_tolerance_s"), "a positive number")
# Members of the fields that programs read: name, field, type; all of them may be left out.
_INSIDE: tuple[tuple[str, str, Any], ...] = (
    *((name, "costs", float) for name in ("macs", "dense_macs", "ms")),
    *((name, "sample", float) for name in ("end_s", "tolerance")),
    *((name, "sample", str) for name in ("file", "sha256")),
    ("machine", "costs", str),
    *((name, "compression", float) for name in ("density", "rank", "macs", "macs_before")),
    *((name, "compression", str) for name in ("adapter", "base", "frozen")),
    ("pruned", "compression", tuple[str, ...]),
    ("int8", "compression", dict[str, Any]),
    ("truth", "sample", tuple[tuple[float | str | None, ...], ...]),
    ("metrics", "sample", dict[str, float]),
)
UNTRAINED = "nothing, random weights"  # how ``trained_on`` begins for untrained weights


@dataclass(frozen=True)
class Timeline(Thresholds):
    """Settings for turning per-step probabilities into segments (``runtime/segments.py``)."""

    threshold: float = THRESHOLD  # a label opens at this probability ...
    low: float | None = None  # ... and closes below this one; None = 0.6 x threshold
    min_length_s: float = 0.5  # shorter segments are dropped
    min_gap_s: float = 0.5  # segments of a label at most this far apart are merged
    thresholds: dict[str, float] = field(default_factory=dict)  # of labels with their own threshold
    smooth_s: float = 0.0  # time constant of ``hysteresis.Smoother``; 0: no smoothing
    presence_s: float = 0.0  # of the average that has to reach the threshold: 1 - background


@dataclass(frozen=True)
class Familiarity:
    """How to tell from the logits of a network whether it knows what it sees or hears.

    The energy, the logarithm of the sum of the exponentials of those of all events, is higher for
    the kinds of input that were learnt (Liu et al., Energy-based out-of-distribution detection,
    NeurIPS 2020); a logistic function makes it a number from 0 to 1.
    """

    centre: float  # energy at which it is 0.5
    scale: float  # change of the energy that multiplies the odds by e
    limit: float = 0.5  # below it, the labels are not to be trusted
    rest: str | None = None  # the event that is everything else, if there is one: left out
    hint: str = ""  # what to tell the user below the limit: what was learnt, what to use instead


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
    frontend: str | None = None  # a key of models.frontend.FRONTENDS; None: features only
    frontend_arguments: dict[str, Any] = field(default_factory=dict)
    gap_tolerance_s: float = 1.0  # a longer time without data resets the state
    timeline: Timeline = field(default_factory=Timeline)
    familiarity: Familiarity | None = None  # None: not known
    temperature: float = 1.0  # of a classifier: divides its logits (Guo et al., ICML 2017)
    description: str = ""
    paper: str = ""
    trained_on: str = ""
    split: str = ""
    metrics: dict[str, Any] = field(default_factory=dict)
    costs: dict[str, Any] = field(default_factory=dict)  # per step: macs, dense_macs, ms, machine
    sample: dict[str, Any] = field(default_factory=dict)  # see evaluation/sample.py
    # What was adapted, pruned or quantised: adapter, rank, density, learnt, macs, ...; "pruned":
    # the modules that are narrower than their arguments; "base": digest of an adapter's base.
    compression: dict[str, Any] = field(default_factory=dict)
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

    @property
    def multilabel(self) -> bool:
        """Whether each label has a probability of its own, so that several may hold at once."""
        return self.task == AUDIO_TAGGING

    def to_json(self) -> str:
        """Return the card as JSON, with keys in the order of the fields."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Card:
        """Return the card in a JSON text; unknown keys are ignored. ModelError if it is invalid."""
        try:
            values = _known(cls, json.loads(text))
            values["labels"] = tuple(values["labels"])
            values["timeline"] = Timeline(**_known(Timeline, values.get("timeline", {})))
            familiarity = values.get("familiarity")
            if familiarity is not None:
                values["familiarity"] = Familiarity(**_known(Familiarity, familiarity))
            card = cls(**values)
            _check(card)
            return card
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ModelError(f"the model card cannot be read ({error})") from error


def _known(of: type[Any], raw: Any) -> dict[str, Any]:
    """Return the values for which a dataclass has a field. ValueError if they do not fit it."""
    if not isinstance(raw, dict):
        raise ValueError(f"{raw!r:.80} is not an object")
    hints = get_type_hints(of)
    for name in hints.keys() & raw.keys():
        if not _fits(raw[name], hints[name]):
            raise ValueError(f"{name} {raw[name]!r:.80} is not {_WORDS.get(name, 'valid')}")
    return {k: v for k, v in raw.items() if k in hints}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a JSON value has the type ``hint``, and is of a usual size."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind is UnionType:
        return any(_fits(value, part) for part in parts)
    if kind is tuple:
        return isinstance(value, list) and all(_fits(each, parts[0]) for each in value)
    if kind is dict:
        return isinstance(value, dict) and all(_fits(each, parts[1]) for each in value.values())
    if hint is Any and isinstance(value, (list, dict)):
        return all(_fits(v, Any) for v in (value.values() if isinstance(value, dict) else value))
    if isinstance(value, bool):
        return hint is Any
    if hint is float or (hint is Any and isinstance(value, int)):
        return isinstance(value, (int, float)) and abs(value) <= _MOST
    return hint is Any or isinstance(value, dict if dataclasses.is_dataclass(hint) else hint)


def _check(card: Card) -> None:
    """Raise ValueError for invalid values."""
    line = card.timeline
    for name in _WORDS:
        value = getattr(card, name)
        if value < 0 or (value == 0 and (name != "rate_hz" or card.labels)):  # 0: of encoders
            raise ValueError(f"{name} {value} is not a positive number")
    for threshold in (line.threshold, *line.thresholds.values()):
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold {threshold} is not a probability above 0")
    if line.low is not None and not 0 <= line.low <= line.threshold:
        raise ValueError(f"low {line.low} is not between 0 and the threshold")
    if min(line.min_length_s, line.min_gap_s, line.smooth_s, line.presence_s) < 0:
        raise ValueError("a time of the timeline is negative")
    several = card.multilabel or card.finds_objects
    if line.presence_s and (card.background is None or several):
        raise ValueError("presence_s needs a background that excludes the other labels")
    if card.background is not None and card.background not in card.labels:
        raise ValueError(f"background {card.background!r} is not a label")
    for name, of, hint in _INSIDE:
        if not _fits(getattr(card, of).get(name), hint | None):
            raise ValueError(f"{of} {name} {getattr(card, of)[name]!r:.80} is not valid")
    familiarity = card.familiarity
    if familiarity is not None and familiarity.scale <= 0:
        raise ValueError(f"scale {familiarity.scale} of the familiarity is not a positive number")
    if familiarity is not None and familiarity.rest not in (None, *card.labels):
        raise ValueError(f"familiarity without {familiarity.rest}, which is not a label")
    unknown = set(card.timeline.thresholds) - set(card.labels)
    if unknown:
        raise ValueError(f"threshold for {', '.join(sorted(unknown))}, which is not a label")


def card_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of model cards."""
    from costream.core.schema import with_dialect  # for this alone: cards are read at every start

    return with_dialect(msgspec.json.schema(Card))
