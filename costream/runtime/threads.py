"""Numbers of threads and tokens: as in the options, unless another number is faster."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import torch

from costream.core.records import Data, VideoFrame
from costream.models.base import Model
from costream.models.gated import GatedModelBase, least_change
from costream.models.streaming import StreamingModel
from costream.models.verify import random_items

log = logging.getLogger("costream")

_ITEMS = 8  # number of items of noise, taken in turn
_ROUNDS, _BLOCK_S = 3, 0.01


def set_threads(model: Model, most: int) -> None:
    """Set the threads of torch to ``most``, or to one if that is faster on steps of noise.

    ``most``: two or more. Models of several streams, such as pictures with sound, get ``most``.
    """
    times = step_times(model, (1, most), _ROUNDS, _BLOCK_S)
    count = min(times, key=times.__getitem__, default=most)
    if count != most:
        ms = " ms, ".join(f"{n}: {1e3 * step_s:.2f}" for n, step_s in times.items())
        log.info("steps are faster with one thread than with --threads %d (%s ms)", most, ms)
    torch.set_num_threads(count)


def set_tokens(model: Model, tokens: int | str) -> None:
    """Make a token-gated model on a GPU compute all tokens unless ``tokens`` of them are faster.

    On a GPU the gates can take longer than they save. On a CPU fewer tokens are always faster.
    How many have changed by more than a distance is not known in advance: nothing is timed then.
    """
    if not isinstance(model, GatedModelBase) or model.device.type == "cpu":
        return
    if least_change(tokens) is not None:
        return
    part_s, all_s = token_times(model, tokens)
    model.all_tokens = all_s <= part_s
    if model.all_tokens:
        ms = f"{1e3 * all_s:.2f} and {1e3 * part_s:.2f} ms"
        log.info("all tokens are faster here than --tokens %s (%s): all are computed", tokens, ms)


def token_times(model: Model, tokens: int | str) -> tuple[float, float]:
    """Return the seconds per output of one stream with ``tokens`` tokens, and with all.

    Medians of several turns, after one in which operations are prepared. The picture of noise stays
    the same, as a different one might count as a cut.
    """
    picture, steps = _noise(model)[0], _ITEMS * model.info.stride
    ways = [(model.init_state(1), count, list[float]()) for count in (tokens, None)]
    for number in range(_ROUNDS + 1):
        for state, count, found in ways:
            state.tokens = count
            began = time.perf_counter()
            for _ in range(steps):
                model.step([picture], state)
            if number:
                found.append((time.perf_counter() - began) / _ITEMS)
    part_s, all_s = (statistics.median(found) for _, _, found in ways)
    return part_s, all_s


def step_times(
    model: Model, counts: Sequence[int], rounds: int, block_s: float
) -> dict[int, float]:
    """Return the seconds of a step of one stream by number of threads; {} if it takes no noise.

    Medians of ``rounds`` turns, each of steps for ``block_s``. Changes torch's number of threads.
    """
    noise = _noise(model)
    if not noise:
        return {}
    items, state = cycle(noise), model.init_state(1)
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count, found in times.items():
            torch.set_num_threads(count)
            found.append(_turn(model, items, state, block_s))
    return {count: statistics.median(found) for count, found in times.items()}


def _turn(model: Model, items: Iterator[Data], state: Any, block_s: float) -> float:
    model.step([next(items)], state)  # wakes the threads
    began, steps = time.perf_counter(), 0
    while not steps or time.perf_counter() - began < block_s:
        model.step([next(items)], state)
        steps += 1
    return (time.perf_counter() - began) / steps


def _noise(model: Model) -> list[Data]:
    if model.info.beside is not None:
        return []
    if isinstance(model, StreamingModel):
        return random_items(model, _ITEMS)
    if not isinstance(model, GatedModelBase) or model.info.box is None:
        return []
    width, height = model.info.box
    pictures = np.random.default_rng(0).integers(0, 256, (_ITEMS, height, width, 3), np.uint8)
    return [VideoFrame(i, float(i), i, picture.copy) for i, picture in enumerate(pictures)]
