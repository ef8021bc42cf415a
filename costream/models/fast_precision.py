"""``--precision fast``: the type of numbers in which a model is fastest here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice, repeat
from typing import Any

import numpy as np

from costream.core.records import Data, VideoFrame
from costream.models.devices import find_device, has_fast_bfloat16
from costream.models.frontend import frontend_class
from costream.models.streaming import StreamingModel
from costream.models.verify import random_items
from costream.nn.choices import choices
from costream.weights_io.card import Card

log = logging.getLogger("costream")
_PICTURES = 4  # that a classifier takes together
_SIZE = 360, 640, 3  # of a picture for detectors
_SETTLED = 6  # pictures after which detectors compute only what has changed, if they do


def fastest_dtype(card: Card, device: str, load: Callable[[str], Any]) -> str:
    """Return the type of numbers in which a model is fastest: bfloat16 or float32.

    Where the processor multiplies bfloat16 faster, models of pictures are timed in both: detectors
    that compute only what has changed (a fixed camera) have no such form in it. Products of a few
    rows, as in models of skeletons and features, take longer in it, and spectrograms need float32.
    What was chosen is logged. ``load`` returns the model in a type.
    """
    takes = getattr(frontend_class(card.frontend), "takes", "") if card.frontend else ""
    if find_device(device).type != "cpu":
        log.warning("--precision fast is for processors: %s is computed in float32", card.name)
        return "float32"
    if not has_fast_bfloat16():
        what = "--precision fast: this processor is not faster in bfloat16; %s is in float32"
        log.warning(what, card.name)
        return "float32"
    found = "float32"
    if takes == "video":
        ways = {dtype: _pictures(load, dtype) for dtype in ("float32", "bfloat16")}
        found = choices.fastest(f"pictures, {card.name}", ways)
    reason = "" if found == "bfloat16" else ": it is not faster in bfloat16"
    log.info("%s is computed in %s%s", card.name, found, reason)
    return found


def _pictures(load: Callable[[str], Any], dtype: str) -> Callable[[], object]:
    """Return a function that takes the next pictures of a stream of the model."""

    @cache
    def prepared() -> tuple[Any, Any, Iterator[list[Data]]]:
        model = load(dtype)
        state = model.init_state()
        if isinstance(model, StreamingModel):
            return model, state, repeat(random_items(model, _PICTURES))
        pictures = ([picture] for picture in _scene())
        for picture in islice(pictures, _SETTLED):
            model.steps(picture, state)
        return model, state, pictures

    def run() -> object:
        model, state, items = prepared()
        return model.steps(next(items), state)

    return run


def _scene() -> Iterator[Data]:
    """Yield pictures of noise without end, in which a small part has changed."""
    random = np.random.default_rng(0)
    scene = random.integers(0, 256, _SIZE, np.uint8)
    for k in count():
        picture = scene.copy()
        y, x = (random.integers(0, side * 3 // 4) for side in _SIZE[:2])
        part = picture[y : y + _SIZE[0] // 4, x : x + _SIZE[1] // 4]
        part[:] = random.integers(0, 256, part.shape, np.uint8)
        yield VideoFrame(k, float(k), k, picture.copy)
