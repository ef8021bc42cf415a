"""Weight files with int8 matrices, and the difference of their scores from the original."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from costream.core.errors import ModelError
from costream.evaluation.sample import sample_scores
from costream.models.build import build, model_class
from costream.models.catalogue import read_model
from costream.models.int8 import SCALE, matrices, to_int8
from costream.models.verify import random_items
from costream.weights_io.file import Weights, write_weights

if TYPE_CHECKING:
    from torch import Tensor

BOUND = 0.01  # most that eight bits may change a score
_STEPS = 64  # of noise, for a model without a sample
_ALONE_S = 12.0  # of the sample, for one matrix after another


def compress(name: str, output: Path) -> dict[str, Any]:
    """Write a model with int8 weight matrices; return the facts for its card.

    ``name``: as for ``find_weights``. The largest difference of a score is measured on the card's
    sample, if it is here, otherwise on noise. Where it is above ``BOUND``, the matrices that change
    a score most stay float16, one after another until it is not. Raises ModelError
    for a model of objects, one without labels, and one that is int8 already; OutputError.
    """
    stored = read_model(name)
    card = stored.card
    if card.finds_objects or not card.labels:
        raise ModelError("only classifiers are compressed", where=name)
    if "int8" in card.compression:
        raise ModelError("its weights are int8 already", where=name)
    sample, before = scores(stored)
    facts: dict[str, Any] = {}
    small = replace(card, compression={**card.compression, "int8": facts})

    def difference(tensors: dict[str, Tensor], most_s: float | None = None) -> float:
        rows = scores(Weights(small, "", tensors), most_s)[1]
        return float(np.abs(rows - before[: len(rows)]).max())

    tensors = to_int8(stored.tensors)
    found = difference(tensors)
    if found > BOUND:
        tensors, found = _within_bound(stored.tensors, tensors, difference)
    names = [key.removesuffix(SCALE) for key in tensors if key.endswith(SCALE)]
    facts |= {"tensors": len(names), "float16": sorted(matrices(stored.tensors) - set(names))}
    facts |= {"score_difference": round(found, 6), "measured_on": sample}
    small = replace(small, name=output.stem)
    write_weights(output, small, tensors)
    return facts


def _within_bound(
    original: Mapping[str, Tensor],
    small: Mapping[str, Tensor],
    difference: Callable[[dict[str, Tensor], float | None], float],
) -> tuple[dict[str, Tensor], float]:
    """Return int8 tensors of which the first few, by what each changes alone, are float16.

    Also return their ``difference``, which is at most ``BOUND``, or that without any int8 tensor.
    """
    bar = partial(tqdm, file=sys.stderr, disable=None, leave=False)  # on a terminal
    each = bar(sorted(matrices(original)), "measuring")
    alone = {key: difference({**original, **_entry(small, key)}, _ALONE_S) for key in each}
    tensors, found = dict(small), 0.0
    for key in bar(iter(sorted(alone, key=alone.__getitem__, reverse=True)), "left float16"):
        del tensors[key + SCALE]
        tensors[key] = original[key].half()
        found = difference(tensors, None)
        if found <= BOUND:
            break
    return tensors, found


def _entry(small: Mapping[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: small[name] for name in (key, key + SCALE)}


def scores(stored: Weights, most_s: float | None = None) -> tuple[str, npt.NDArray[np.float64]]:
    """Return the scores [T, K] of a model on its sample, or on noise, and which it was.

    ``most_s``: of the sample, at most.
    """
    model = model_class(stored.card)(stored.card, *build(stored.card, stored.tensors))
    rows = sample_scores(model, most_s=most_s)
    if rows is not None:
        return str(stored.card.sample["file"]), rows
    state = model.init_state()
    steps = [model.step([item], state).probabilities for item in random_items(model, _STEPS)]
    return "noise", np.array([p[0] for p in steps if p is not None], np.float64)
