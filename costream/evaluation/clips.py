"""Metrics of clips, or lines of text, of one class each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from costream.core.errors import UsageError
from costream.evaluation.evaluate_settings import (
    EvaluateSettings,
    card_of,
    load,
    progress,
    readable,
    source_options,
)
from costream.evaluation.metrics.bootstrap import FEWEST_GROUPS, bootstrap
from costream.evaluation.metrics.frames import (
    average_precisions,
    confusion,
    frame_accuracy,
    mean_average_precision,
)
from costream.evaluation.metrics.sequence_metrics import (
    class_table,
    confused,
    fuse,
    pool,
    timeline_shares,
    top1_by_rivals,
    top_k,
)
from costream.evaluation.predictions import ModelPredictions, run_alone, run_concatenated
from costream.labels.examples import Example, fit_labels, to_examples
from costream.labels.reading import read_recordings
from costream.labels.text_lines import read_lines
from costream.models.compatibility import card_kind
from costream.runtime.stop import StopHandler
from costream.sources.base import SourceOptions

if TYPE_CHECKING:
    from costream.models.base import Model


def clip_scores(settings: EvaluateSettings, stop: StopHandler) -> dict[str, Any]:
    """Run the model over the clips and return the metrics as JSON values; see ``measure``.

    Raises UsageError for unusable data, ModelError, SourceError.
    """
    card = card_of(settings)
    if card_kind(card) == "text":
        examples = read_lines(settings.data, settings.group)
    else:
        recordings = read_recordings(settings.data, None, settings.group, settings.columns)
        examples = to_examples(recordings, None)
    examples = fit_labels(examples, card.labels, card.background)
    if not examples:
        raise UsageError("no usable examples", where=settings.data)
    return measure(load(settings), examples, settings, stop)


def measure(
    model: Model, examples: Sequence[Example], settings: EvaluateSettings, stop: StopHandler
) -> dict[str, Any]:
    """Return the metrics as JSON values; empty if ``stop`` was requested meanwhile.

    The background label can be predicted only if examples have it. Unreadable examples are logged,
    skipped and counted ("failed"). SourceError if no example can be read; UsageError for a rate if
    the model takes audio.
    """
    names = model.info.card.labels
    options = source_options(settings, model)

    def alone(example: Example) -> ModelPredictions:
        return run_alone(model, example, options, settings.rate_hz, stop)

    read = list(readable(examples, alone, "example", settings.data, stop))
    if stop.requested:
        return {}
    failed = len(examples) - len(read)
    examples, found = [example for example, _ in read], [predicted for _, predicted in read]
    predictions = [predicted.probabilities for predicted in found]
    truth, background = [e.label for e in examples], model.info.card.background
    labels = np.array([names.index(label) for label in truth])
    nothing = None if background is None else names.index(background)
    rivals = top1_by_rivals(fuse(predictions, "mean"), labels, nothing)
    timeline = timeline_shares([predicted.segments for predicted in found], truth, background)
    left_out = background is not None and background not in truth
    if left_out:
        # No example is of the background: classify among the actions only.
        predictions = [without(rows, names.index(str(background))) for rows in predictions]
    result = {
        "model": model.info.card.name,
        "weights_sha256": model.info.weights_sha256,
        "labels": list(names),
        "background": model.info.card.background,
        "examples": len(examples),
        "failed": failed,
        **({"left_out": background} if left_out else {}),
        "sequences": {
            **sequence_scores(predictions, labels, [e.group for e in examples], names),
            **rivals,
        },
        "timeline": timeline,
    }
    groups = group_scores(predictions, labels, [e.group for e in examples])
    if groups is not None:
        result["groups"] = groups
    if settings.joined:
        result["streams"] = _streams(model, examples, options, settings, stop)
    return result


def sequence_scores(
    predictions: Sequence[Any], labels: Any, groups: Sequence[str], names: Sequence[str]
) -> dict[str, Any]:
    """Return the metrics of sequences [T, K] with these labels [N].

    The interval resamples groups, or sequences if there are too few groups: it then does not
    cover differences between people. ``of_groups`` is the number of groups if sequences share one.
    """
    mean, vote, last = (
        fuse(predictions, "mean"),
        fuse(predictions, "vote"),
        fuse(predictions, "last"),
    )
    over = "groups" if len(set(groups)) >= FEWEST_GROUPS else "sequences"
    units = list(groups) if over == "groups" else list(range(len(groups)))
    members = [[k for k, u in enumerate(units) if u == unit] for unit in dict.fromkeys(units)]

    def redraw(drawn: Sequence[int]) -> float:
        rows = [k for g in drawn for k in members[g]]
        return top_k(mean[rows], labels[rows])

    counts = confusion(mean.argmax(1), labels, len(names))
    return {
        "top1": top_k(mean, labels),
        "top1_95": list(bootstrap(redraw, len(members))),
        "top1_95_over": over,
        **({"of_groups": len(set(groups))} if len(set(groups)) < len(groups) else {}),
        "top5": top_k(mean, labels, 5),
        "top1_vote": top_k(vote, labels),
        "top1_last": top_k(last, labels),
        "top5_last": top_k(last, labels, 5),
        "sequence_mAP": mean_average_precision(mean, labels),
        "classes": class_table(mean, labels, names),
        "confused": [list(pair) for pair in confused(mean, labels, names)],
        "confusion": counts.tolist(),
    }


def group_scores(
    predictions: Sequence[Any], labels: Any, groups: Sequence[str]
) -> dict[str, Any] | None:
    """Return the accuracy over groups with one label each, such as the clips of a song.

    The steps of all sequences of a group are fused as one sequence. None if some group has
    several labels, as with people, or every group is a single sequence.
    """
    pooled = pool(predictions, groups)
    members: dict[str, set[int]] = {group: set() for group in pooled}
    for group, label in zip(groups, labels, strict=True):
        members[group].add(int(label))
    if len(pooled) == len(predictions) or any(len(found) > 1 for found in members.values()):
        return None
    steps, truth = list(pooled.values()), np.array([found.pop() for found in members.values()])
    mean = fuse(steps, "mean")
    return {
        "groups": len(steps),
        "top1": top_k(mean, truth),
        "top5": top_k(mean, truth, 5),
        "top1_vote": top_k(fuse(steps, "vote"), truth),
    }


def stream_scores(predictions: Any, labels: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the frame metrics of scores [T, K] and labels [T]."""
    precision = average_precisions(predictions, labels)
    return {
        "frames": len(labels),
        "mAP": mean_average_precision(predictions, labels),
        "accuracy": frame_accuracy(predictions.argmax(1), labels),
        "average_precision": {
            name: float(value)
            for name, value in zip(names, precision, strict=True)
            if not np.isnan(value)
        },
    }


def without(rows: Any, column: int) -> Any:
    """Return probabilities [T, K] with a class set to 0 and the others renormalised to sum 1."""
    out = np.array(rows, np.float64)
    out[:, column] = 0.0
    return out / np.maximum(out.sum(1, keepdims=True), 1e-12)


def _streams(
    model: Model,
    examples: Sequence[Example],
    options: SourceOptions,
    settings: EvaluateSettings,
    stop: StopHandler,
) -> dict[str, Any]:
    order = np.random.default_rng(settings.seed).permutation(len(examples))
    groups = [order[k : k + settings.joined] for k in range(0, len(order), settings.joined)]
    rows, truth = [], []
    for group in progress(groups, "streams"):
        chosen = [examples[k] for k in group]
        predictions, labels = run_concatenated(model, chosen, options, settings.rate_hz, stop)
        if stop.requested:
            return {}
        rows.append(predictions.probabilities)
        truth += [model.info.card.labels.index(label) for label in labels]
    scores, background = np.concatenate(rows), model.info.card.background
    share = {}
    if background is not None:
        column = model.info.card.labels.index(background)
        share = {"background": float((scores.argmax(1) == column).mean())}
    metrics = stream_scores(scores, np.array(truth), model.info.card.labels)
    return {"streams": len(groups), **metrics, **share}
