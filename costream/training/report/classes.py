"""HTML report of ``costream train`` for actions and sounds (``OUTPUT.html``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costream.checkpoints.card import LOW, Timeline
from costream.evaluation.metrics.calibration import calibration_error, reliability
from costream.report.markup import Html, name, tag
from costream.report.tables import Cell, number, share_bar, table
from costream.training.calibration import Calibration, StreamPredictions, at_temperature
from costream.training.report.page import (
    MOST_CONFUSED,
    TrainingReport,
    confusion_table,
    data,
    facts,
    figure,
    learning,
    page,
    reliability_chart,
    section,
    use,
)


@dataclass(frozen=True)
class SequenceReport(TrainingReport):
    """Contents of the report; the "validation" metrics are of sequences.

    ``streams``: predictions on validation streams, with ground truth; ``calibration``: chosen on
    them, None without such.
    """

    streams: Sequence[StreamPredictions] = ()
    calibration: Calibration | None = None


def own_report(learnt: SequenceReport) -> str:
    """Return the report as HTML without scripts or external resources."""
    card = learnt.card
    background = frozenset() if card.background is None else frozenset([card.background])
    learnt.palette.add(card.labels, card.labels, background)
    return page(
        card,
        _facts(learnt),
        learning(learnt.history),
        _classes(learnt),
        _confusion(learnt),
        _baselines(learnt),
        _chosen(learnt),
        _reliability(learnt),
        data(learnt.card),
        use(learnt.file, "--data FOLDER"),
    )


def _facts(learnt: SequenceReport) -> Html:
    trained, checked = learnt.trained.total(), learnt.checked.total()
    cards = [
        ("Classes", str(len(learnt.card.labels)), f"with {learnt.card.background!r}"),
        ("Examples", f"{trained + checked:,}", f"{trained:,} to train, {checked:,} to validate"),
    ]
    if learnt.validation:
        own = learnt.validation[learnt.card.name]
        low, high = own["top1_95"]
        over = f"95 % interval over {own['top1_95_over']} {low:.2f} to {high:.2f}"
        cards.insert(0, ("Top-1", f"{own['top1']:.2f}", over))
    if learnt.calibration is not None:
        before, after = learnt.calibration.f1
        cards.append(("F1 of segments", f"{after:.2f}", f"{before:.2f} before calibration"))
    return facts(cards, checked=bool(learnt.validation))


def _classes(learnt: SequenceReport) -> Html:
    classes = learnt.validation[learnt.card.name]["classes"] if learnt.validation else {}
    rows: list[Sequence[Cell]] = []
    for label in learnt.card.labels:
        paint, about = learnt.palette.paint(label), classes.get(label, {})
        bars = (about.get(key) for key in ("average_precision", "recall", "precision"))
        rows.append(
            [
                *learnt.cells(label),
                *("–" if value is None else share_bar(value, paint) for value in bars),
            ]
        )
    columns = ("Class", "Trained on", "Validated with", "Average precision", "Recall", "Precision")
    background = learnt.card.background
    note = (
        f"On validation examples, by the mean over their steps. {background!r} makes no segments."
    )
    return section("Classes", table(columns, rows, numbers=(1, 2)), tag("p", note, class_="note"))


def _confusion(learnt: SequenceReport) -> Html | None:
    if not learnt.validation:
        return None
    counts = np.array(learnt.validation[learnt.card.name]["confusion"])
    if len(counts) <= MOST_CONFUSED:
        return section("Confusion", confusion_table(counts, learnt.card.labels))
    wrong = learnt.validation[learnt.card.name]["confused"]
    rows = [(name(a), name(b), number(str(n))) for a, b, n in wrong[:MOST_CONFUSED]]
    return section("Confusion", table(("Class", "Predicted as", "Examples"), rows, numbers=(2,)))


def _baselines(learnt: SequenceReport) -> Html | None:
    if not learnt.validation:
        return None
    rows = [
        [name(model), *(figure(scores.get(key)) for key in ("top1", "top1_vote", "sequence_mAP"))]
        for model, scores in learnt.validation.items()
    ]
    columns = ("Model", "Top-1", "Top-1 of votes", "mAP")
    return section("Compared with baselines", table(columns, rows, numbers=(1, 2, 3)))


def _chosen(learnt: SequenceReport) -> Html | None:
    chosen = learnt.calibration
    if chosen is None:
        return None
    before, after = _settings(1.0, chosen.start), _settings(chosen.temperature, chosen.timeline)
    keys = list(dict.fromkeys((*after, *before)))
    rows = [(key, after.get(key, "–"), before.get(key, "–")) for key in keys]
    listed = table(("Setting", "Chosen", "Before"), rows, numbers=(1, 2))
    return section("Calibration", tag("p", chosen.how), listed)


def _settings(temperature: float, timeline: Timeline) -> dict[str, str]:
    own = {f"threshold of {label}": f"{v:g}" for label, v in timeline.thresholds.items()}
    return {
        "temperature": f"{temperature:g}",
        "threshold": f"{timeline.threshold:g}",
        **own,
        "closes below": f"{LOW:g} of it" if timeline.low is None else f"{timeline.low:g}",
        "time constant of smoothing": f"{timeline.smooth_s:g} s",
        "minimum length": f"{timeline.min_length_s:g} s",
        "gaps bridged up to": f"{timeline.min_gap_s:g} s",
    }


def _reliability(learnt: SequenceReport) -> Html | None:
    if not learnt.streams or learnt.calibration is None:
        return None
    said = np.concatenate([told.probabilities for told in learnt.streams])
    truth = np.concatenate([told.labels for told in learnt.streams])
    temperature, charts = learnt.calibration.temperature, []
    for value in dict.fromkeys((1.0, temperature)):
        bins = reliability(at_temperature(said, value), truth)
        title = f"Temperature {value:g}: expected calibration error {calibration_error(bins):.3f}"
        charts.append(reliability_chart(bins, title))
    note = (
        "Accuracy of the best label of a step over its confidence. On the dashed line both are"
        " equal. Bars of full colour hold many steps."
    )
    shown = tag("div", charts, class_="pair")
    return section("Reliability", shown, tag("p", note, class_="note"))
