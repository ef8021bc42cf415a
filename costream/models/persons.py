"""A model of a stream as a whole, and one that sees each of its persons by themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costream.core.errors import ModelError
from costream.core.records import Data, SourceInfo
from costream.models.base import GatedModel, Model, StepResult

PERSON = "person"  # the label of a detector whose boxes are persons


class PersonsModel:
    """Two models on one source; implements ``models.base.Model``.

    ``whole`` sees or hears the stream as a whole: a detector, or sound beside the pictures.
    ``person`` is for one person: their skeleton or, with ``crops``, their part of the picture, as
    the boxes of the detector say. A step is that of ``whole``; ``runtime.persons`` takes those of
    ``person``, with a row for each, whose heads have columns in these results only.
    """

    def __init__(self, whole: Model, person: Model) -> None:
        """Raises ModelError for models that do not go together."""
        self.whole, self.person = whole, person
        self.crops = whole.info.card.finds_objects
        names = [person.info.card.name, whole.info.card.name]
        name = ",".join(reversed(names) if self.crops else names)
        if self.crops:
            _check_crops(whole, person, name)
        own = [replace(head, by_person=True) for head in person.info.heads]
        others = list(whole.info.heads)
        if person.info.stride > 1:  # the others have an output at every step
            others = [replace(h, rate_hz=h.rate_hz or math.inf) for h in others]
        heads = (*others, *own) if self.crops else (*own, *others)
        seen, clock = (whole if self.crops else person).info, person.info.card
        labels = tuple(label for head in heads for label in head.card.labels)
        card = replace(
            seen.card,
            name=name,
            labels=labels,
            background=None,
            rate_hz=clock.rate_hz,
            gap_tolerance_s=clock.gap_tolerance_s,
        )
        self.info = replace(
            seen,
            card=card,
            weights_sha256=",".join(head.weights_sha256 for head in heads),
            heads=heads,
            stride=person.info.stride,
            delay=person.info.delay,
            frames=person.info.frames,
            beside=whole.info.beside,
            in_time=True,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Raise SourceError if the source does not fit; return entries for the header."""
        first, second = (self.whole, self.person) if self.crops else (self.person, self.whole)
        return {**first.check(source), **second.check(source)}

    def init_state(self, batch_size: int = 1) -> Any:
        """Return an initial state of ``whole``."""
        return self.whole.init_state(batch_size)

    def step(self, items: Sequence[Data], state: Any) -> StepResult:
        """Take one item per stream, return the result of ``whole``."""
        return self.whole.step(items, state)

    def steps(self, items: Sequence[Data], state: Any) -> list[StepResult]:
        """Take consecutive items of one stream, return the results of ``whole``."""
        return self.whole.steps(items, state)


class GatedPersonsModel(PersonsModel):
    """The same with a token-gated detector; implements ``models.base.GatedModel``."""

    whole: GatedModel

    def token_count(self, state: Any) -> int | None:
        """Return the number of tokens of a frame of this stream; None before its first."""
        return self.whole.token_count(state)

    def step_macs(self, state: Any, count: int) -> int:
        """Return the approximate cost of the detector with ``count`` tokens."""
        return self.whole.step_macs(state, count)


def with_persons(whole: Model, person: Model) -> PersonsModel:
    """Return one model of both. Raises ModelError as ``PersonsModel``."""
    kind = GatedPersonsModel if isinstance(whole, GatedModel) else PersonsModel
    return kind(whole, person)


def _check_crops(detector: Model, person: Model, name: str) -> None:
    """Raise ModelError unless a model can see the persons whom a detector finds."""
    about, own, hint = person.info, person.info.card.name, None
    if PERSON not in detector.info.card.labels:
        why = f"{detector.info.card.name} has no label {PERSON!r}, so there is nobody to look at"
    elif about.persons is not None:
        why, hint = f"{own} finds the persons by itself", f"use -m {own} alone"
    elif isinstance(person, GatedModel):
        why, hint = f"{own} is token-gated and cannot see each person", "use cooadtr, for example"
    elif about.box is None:
        why = f"{own} does not take pictures"
    elif about.beside is not None:
        why = f"{own} takes the sound of one stream, not of each person"
    else:
        return
    raise ModelError(why, where=name, hint=hint)
