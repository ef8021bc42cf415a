"""Saved states of streams: the network, the clock, the scores and the open segments."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from costream.core.clock import Resampler, Tick
from costream.core.errors import SourceError
from costream.core.layouts import find_layout
from costream.core.records import Data, FeatureRow, SkeletonFrame, VideoFrame
from costream.models.base import Model
from costream.runtime.pipeline import StreamRunner
from costream.runtime.recorder import StreamRecorder
from costream.runtime.saved_state import UnfitStateError, read_state, write_state
from costream.runtime.timelines import HeadTimeline, resume_smoothing, smoothed_scores
from costream.sources.values import ItemConverter

_NETWORK, _CLOCK, _REST = "network.", "clock.", "rest"


def save_stream(
    path: Path,
    recorder: StreamRecorder,
    runner: StreamRunner,
    converter: ItemConverter,
    newest_s: float,
    rate_hz: float | None,
) -> None:
    """Write the state of a stream, its newest time and its rate. Raises OutputError."""
    rows, counters, timelines = runner.persons, recorder.counters, recorder.timelines
    state = runner.state if rows is None or rows.state is None else rows.state
    tensors = {_NETWORK + key: value for key, value in state.tensors().items()}
    position: dict[str, Any] = {
        "next_step": counters.next_step,
        "first_s": counters.first_s,
        "last_s": counters.last_s,
        "smoothed": smoothed_scores(timelines.current),
        "segments": _segments(timelines.current),
        "persons": {} if rows is None else rows.position,
        "people": [
            [n, smoothed_scores(of_person), _segments(of_person)]
            for n, of_person in timelines.people.items()
        ],
        "taken": converter.taken,
        "rest_s": None if converter.rest_s is None else float(converter.rest_s),
        "newest_s": newest_s,
        "rate_hz": rate_hz,
        "slots": None if converter.slots is None else converter.slots.position,
    }
    if isinstance(runner.clock, Resampler):
        ticker = runner.clock.ticker
        waiting = [] if ticker.newest is None else [Tick(0, 0.0, ticker.newest, ticker.fresh)]
        waiting += runner.clock.parts
        position |= {"t0_s": ticker.t0_s, "next": ticker.next, "waiting": []}
        for k, tick in enumerate(waiting):
            about, arrays = _described(tick.item)
            about |= {"tick": [tick.i, tick.time_s, tick.fresh]}
            position["waiting"].append(about)
            tensors |= {f"{_CLOCK}{k}.{name}": value for name, value in arrays.items()}
    if converter.rest is not None:
        tensors[_REST] = torch.tensor(converter.rest)
    metadata = {**_about(recorder.model), "position": json.dumps(position)}
    write_state(path, metadata, tensors)


@dataclass(frozen=True)
class SavedStream:
    """A state that was read, to be put into a stream at its first frame."""

    tensors: dict[str, Tensor]  # of the network
    position: dict[str, Any]
    waiting: tuple[Tick, ...]  # the newest item, and the first ones of the next tick
    rest: Tensor | None  # samples [channels, N] behind the last block

    def restore(
        self, recorder: StreamRecorder, runner: StreamRunner, converter: ItemConverter
    ) -> None:
        """Set the state of a stream that has just been opened."""
        position, timelines = self.position, recorder.timelines
        runner.resume(self.tensors, position["persons"] if position["people"] else None)
        _resume(timelines.current, position["smoothed"], position["segments"])
        recorder.resume(
            position["next_step"],
            first_s=position["first_s"],
            last_s=position["last_s"],
            persons=[number for number, _, _ in position["people"]],
        )
        for number, smoothed, segments in position["people"]:
            _resume(timelines.people[number], smoothed, segments)
        rest_s = position.get("rest_s")  # none in older states
        converter.go_on(position["taken"], position["last_s"] if rest_s is None else rest_s)
        converter.rest = None if self.rest is None else self.rest.numpy()
        if converter.slots is not None:
            converter.slots.resume(position["slots"])
        if isinstance(runner.clock, Resampler) and self.waiting:
            ticker = runner.clock.ticker
            ticker.t0_s, ticker.next = position["t0_s"], position["next"]
            ticker.newest, ticker.fresh = self.waiting[0].item, self.waiting[0].fresh
            runner.clock.parts = list(self.waiting[1:])


def load_stream(path: Path, model: Model) -> SavedStream:
    """Read a state of a stream of ``model``.

    Raises SourceError if the file cannot be read, is damaged, or belongs to other weights.
    """
    try:
        metadata, tensors = read_state(path, _about(model))
        position = json.loads(metadata["position"])
        waiting = tuple(
            _tick(about, _item(about, tensors, f"{_CLOCK}{k}."))
            for k, about in enumerate(position.get("waiting", []))
        )
        network = {
            key.removeprefix(_NETWORK): value
            for key, value in tensors.items()
            if key.startswith(_NETWORK)
        }
        saved = SavedStream(network, position, waiting, tensors.get(_REST))
        rows = max(1, len(position["people"]))
        model.init_state(rows).load_tensors(network)  # whether they fit
    except UnfitStateError as error:
        raise SourceError(f"this state cannot be used: {error}", where=path) from error
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError("this state cannot be used: it does not fit", where=path) from error
    except OSError as error:
        raise SourceError(f"cannot be read ({error.strerror})", where=path) from error
    return saved


def _segments(timelines: Sequence[HeadTimeline]) -> list[dict[str, Any]]:
    """Return the open segments of each head."""
    return [entry.segmenter.snapshot() for entry in timelines]


def _resume(
    timelines: Sequence[HeadTimeline], smoothed: Sequence[float], segments: Sequence[dict[str, Any]]
) -> None:
    """Go on with the scores and the open segments of each head."""
    resume_smoothing(timelines, smoothed)
    for entry, part in zip(timelines, segments, strict=True):
        entry.segmenter.restore(part)


def _tick(about: dict[str, Any], item: Data) -> Tick:
    i, time_s, fresh = about["tick"]
    return Tick(i, time_s, item, fresh)


def _about(model: Model) -> dict[str, str]:
    return {"model": model.info.card.name, "weights": model.info.weights_sha256}


def _described(item: Data) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return JSON values and tensors from which ``_item`` makes the item again."""
    about: dict[str, Any] = {"i": item.i, "time_s": item.time_s}
    if isinstance(item, VideoFrame):
        return {**about, "size": item.size}, {"rgb": torch.from_numpy(np.array(item.rgb))}
    if isinstance(item, SkeletonFrame):
        arrays = {"joints": item.joints, "scores": item.scores}
        about |= {"layout": item.layout.name, "persons": item.persons}
    else:
        assert isinstance(item, FeatureRow)  # audio has no clock of this kind
        arrays = {"values": item.values}
    return about, {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def _item(about: dict[str, Any], tensors: dict[str, Tensor], prefix: str) -> Data:
    arrays = {
        key.removeprefix(prefix): value.numpy()
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    i, time_s = about["i"], about["time_s"]
    if "rgb" in arrays:
        size = None if about["size"] is None else (about["size"][0], about["size"][1])
        return VideoFrame(i, time_s, None, partial(np.asarray, arrays["rgb"]), size=size)
    if "joints" in arrays:
        layout = find_layout(about["layout"])
        persons = None if about["persons"] is None else tuple(about["persons"])
        joints, scores = arrays["joints"], arrays["scores"]
        return SkeletonFrame(i, time_s, joints, scores, layout, persons=persons)
    return FeatureRow(i, time_s, arrays["values"])
