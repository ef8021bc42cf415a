"""A model of a stream together with a model of each of its persons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from costream.core.errors import ModelError
from costream.core.records import Data, SourceInfo
from costream.models.base import GatedModel, Looks, Model, StepResult
from costream.weights_io.licences import terms_of

PERSON = "person"  # the label of a detector whose boxes are persons


class PersonsModel:
    """Two models on one source; implements ``models.base.Model``.

    ``stream`` takes the pictures or the sound of the stream: a detector, or a model of sound.
    ``person`` takes one person: a skeleton, whose joints are looked for in the boxes of a detector,
    or, with ``crops``, the part of the picture in such a box. A step of this model is a step of
    ``stream``. ``runtime.persons`` steps ``person`` with a row for each person; the columns of its
    heads are those of these results.
    """

    def __init__(self, stream: Model, person: Model) -> None:
        """Raises ModelError for models that cannot be combined."""
        self.stream, self.person = stream, person
        self.boxes = stream.info.card.finds_objects
        self.crops = self.boxes and person.info.persons is None
        names = [person.info.card.name, stream.info.card.name]
        name = ",".join(reversed(names) if self.boxes else names)
        if self.boxes:
            _check_boxes(stream, person, name)
        person_heads = [replace(head, by_person=True) for head in person.info.heads]
        stream_heads = list(stream.info.heads)
        if person.info.stride > 1:  # while the stream has an output at every step
            stream_heads = [replace(h, rate_hz=h.rate_hz or math.inf) for h in stream_heads]
        heads = (*stream_heads, *person_heads) if self.boxes else (*person_heads, *stream_heads)
        info, clock = (stream if self.boxes else person).info, person.info.card
        labels = tuple(label for head in heads for label in head.card.labels)
        card = replace(
            info.card,
            name=name,
            labels=labels,
            background=None,
            rate_hz=clock.rate_hz,
            gap_tolerance_s=clock.gap_tolerance_s,
            **terms_of((stream.info.card, person.info.card)),
        )
        self.info = replace(
            info,
            card=card,
            weights_sha256=",".join(head.weights_sha256 for head in heads),
            heads=heads,
            stride=person.info.stride,
            delay=person.info.delay,
            frames=person.info.frames,
            beside=stream.info.beside,
            in_time=True,
            box=info.box if self.crops else person.info.box,
        )

    def check(self, source: SourceInfo) -> dict[str, Any]:
        """Return entries for the header. Raises SourceError if the source does not fit."""
        first, second = (self.stream, self.person) if self.boxes else (self.person, self.stream)
        notes = {**first.check(source), **second.check(source)}
        if self.boxes and not self.crops:
            detector = self.stream.info.heads[0].card.name
            crowd = notes.get("pose", "").startswith("MoveNet")
            found = "MoveNet on pictures with persons" if crowd else "BlazePose on persons"
            notes["pose"] = f"{found} of {detector}"
        return notes

    def init_state(self, batch_size: int = 1) -> Any:
        """Return an initial state of ``stream``.

        Where joints are looked for in its boxes, the detector looks where something has moved, and
        at most at the rate of its card, while joints are followed at each step.
        """
        state = self.stream.init_state(batch_size)
        if self.boxes and not self.crops:
            rate_hz = self.stream.info.card.rate_hz
            share = min(1.0, rate_hz / self.info.card.rate_hz)
            state.looks = Looks(pause_s=1 / rate_hz, share=share)
        return state

    def step(self, items: Sequence[Data], state: Any) -> StepResult:
        """Take one item per stream, return the result of ``stream``."""
        return self.stream.step(items, state)

    def steps(self, items: Sequence[Data], state: Any) -> list[StepResult]:
        """Take consecutive items of one stream, return the results of ``stream``."""
        return self.stream.steps(items, state)


class GatedPersonsModel(PersonsModel):
    """The same with a token-gated detector; implements ``models.base.GatedModel``."""

    stream: GatedModel

    def token_count(self, state: Any) -> int | None:
        """Return the number of tokens of a frame of this stream; None before its first."""
        return self.stream.token_count(state)

    def step_macs(self, state: Any, count: int) -> int:
        """Return the approximate cost of the detector with ``count`` tokens."""
        return self.stream.step_macs(state, count)


def with_persons(stream: Model, person: Model) -> PersonsModel:
    """Return both as one model. Raises ModelError as ``PersonsModel``."""
    kind = GatedPersonsModel if isinstance(stream, GatedModel) else PersonsModel
    return kind(stream, person)


def looks_of(model: Model, state: Any) -> Looks | None:
    """Return when the detector of a stream looks; None if that does not depend on its persons."""
    if not isinstance(model, PersonsModel) or model.crops or not model.boxes:
        return None
    looks: Looks | None = state.looks
    return looks


def _check_boxes(detector: Model, person: Model, name: str) -> None:
    """Raise ModelError unless a model takes the persons that a detector finds."""
    info, model, hint = person.info, person.info.card.name, None
    if PERSON not in detector.info.card.labels:
        why = f"{detector.info.card.name} has no label {PERSON!r}, so it finds no persons"
    elif info.persons == 1 and detector.info.looks:
        return
    elif info.persons == 1:
        why = f"{detector.info.card.name} looks at every picture, which takes too long for joints"
        hint = "use nanodet"
    elif info.persons is not None:
        why, hint = f"{model} finds the persons by itself", f"use -m {model} alone"
    elif isinstance(person, GatedModel):
        why = f"{model} is token-gated and cannot take several persons"
        hint = "use cooadtr, for example"
    elif info.box is None:
        why = f"{model} does not take pictures"
    elif info.beside is not None:
        why = f"{model} takes the sound of one stream, not of each person"
    else:
        return
    raise ModelError(why, where=name, hint=hint)
