"""Weight files with int8 matrices, and how much their scores differ from those of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.checkpoints.file import Weights, write_weights
from costream.errors import ModelError
from costream.evaluation.sample import sample_scores
from costream.models.build import build, model_class
from costream.models.int8 import SCALE, to_int8
from costream.models.registry import read_model
from costream.models.verify import random_items

_STEPS = 64  # of noise, for a model without a sample


def compress(name: str, output: Path) -> dict[str, Any]:
    """Write a model with int8 weight matrices; return what its card then says of it.

    ``name``: as for ``find_weights``. The largest difference of a score is measured on the card's
    sample, if it is here, otherwise on noise. Raises ModelError for a model of objects, one
    without labels, and one that is int8 already; OutputError.
    """
    stored = read_model(name)
    card = stored.card
    if card.finds_objects or not card.labels:
        raise ModelError("only classifiers are compressed", where=name)
    if "int8" in card.compression:
        raise ModelError("its weights are int8 already", where=name)
    tensors = to_int8(stored.tensors)
    facts: dict[str, Any] = {"tensors": sum(key.endswith(SCALE) for key in tensors)}
    small = replace(card, compression={**card.compression, "int8": facts})
    sample, before = scores(stored)
    after = scores(Weights(small, "", tensors))[1]
    facts["score_difference"] = round(float(np.abs(after - before).max()), 6)
    facts["measured_on"] = sample
    small = replace(small, name=output.stem)
    write_weights(output, small, tensors)
    return facts


def scores(stored: Weights) -> tuple[str, npt.NDArray[np.float64]]:
    """Return the scores [T, K] of a model on its sample, or on noise, and which it was."""
    model = model_class(stored.card)(stored.card, *build(stored.card, stored.tensors))
    rows = sample_scores(model)
    if rows is not None:
        return str(stored.card.sample["file"]), rows
    state = model.init_state()
    steps = [model.step([item], state).probabilities for item in random_items(model, _STEPS)]
    return "noise", np.array([p[0] for p in steps if p is not None], np.float64)
