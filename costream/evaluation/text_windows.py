"""Metrics of lines of text by the length of a network's window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.records import TextLine
from costream.evaluation.evaluate_settings import (
    EvaluateSettings,
    load,
    progress,
    source_options,
)
from costream.evaluation.predictions import run_alone
from costream.labels.examples import fit_labels
from costream.labels.text_lines import read_lines
from costream.models.compatibility import card_kind
from costream.runtime.stop import StopHandler

if TYPE_CHECKING:
    pass
WINDOWS = 0.5, 1.0, 2.0  # of the mean length of a line


def window_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Return scores and costs on lines with windows of 0.5, 1 and 2 times their mean length.

    The protocol of DeepCoT (Carreto Picon et al., 2025) for GLUE: each line alone, its label read
    after the last token. The scores are the ones of GLUE: accuracy, F1 (here the mean over the
    labels of the lines) and Matthews' correlation. Raises UsageError for a network that does not
    read text, ModelError for one whose weights fit a single window.
    """
    from costream.models.build import build, model_class
    from costream.models.catalogue import read_model

    stored = read_model(str(settings.model), settings.weights)
    if card_kind(stored.card) != "text":
        raise UsageError("is for text", where="--protocol glue", hint="thumos14 is for features")
    examples, card = read_lines(settings.data, settings.group), stored.card
    lines = fit_labels(examples, card.labels, card.background)
    loaded: Any = load(settings)
    tokens = [len(loaded.frontend.prepare(TextLine(0, 0.0, line.source))) for line in lines]
    mean, rows = sum(tokens) / len(tokens), []
    for factor in WINDOWS:
        window = max(1, round(factor * mean))
        card = replace(stored.card, arguments={**stored.card.arguments, "window": window})
        modules = build(card, stored.tensors)
        device = {"device": settings.device, "dtype": settings.dtype}
        model = model_class(card)(card, *modules, weights_sha256=stored.sha256, **device)
        options = source_options(settings, model)
        counts = np.zeros((len(card.labels), len(card.labels)), np.int64)
        for line in progress(lines, f"window {window}"):
            scores = run_alone(model, line, options, None, stop).probabilities
            if stop.requested:
                return {}
            counts[card.labels.index(line.label), int(scores[-1].argmax())] += 1
        rows.append(
            {
                "factor": factor,
                "window": window,
                **label_scores(counts),
                "macs": model.network_macs,
                "dense_macs": model.network_dense_macs,
            }
        )
    return {"model": stored.card.name, "examples": len(lines), "tokens": mean, "windows": rows}


def label_scores(counts: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return accuracy, mean F1 and Matthews' correlation of a confusion matrix [true, predicted].

    The mean is over classes that occur. The correlation of several classes: Gorodkin, "Comparing
    two K-category assignments by a K-category correlation coefficient" (2004); 0 without any.
    """
    true, predicted, right = (
        counts.sum(1).astype(float),
        counts.sum(0).astype(float),
        counts.diagonal(),
    )
    total = true.sum()
    occurs = true > 0
    spread = (total**2 - (predicted**2).sum()) * (total**2 - (true**2).sum())
    together = right.sum() * total - (true * predicted).sum()
    return {
        "accuracy": float(right.sum() / total),
        "f1": float((2 * right[occurs] / (true + predicted)[occurs]).mean()),
        "matthews": float(together / spread**0.5) if spread > 0 else 0.0,
    }
