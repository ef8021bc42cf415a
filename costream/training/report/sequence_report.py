"""HTML report of ``costream train`` for actions and sounds (``OUTPUT.html``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costream.core.records import LOW
from costream.evaluation.clip_tables import interval_units
from costream.evaluation.metrics.reliability import calibration_error, reliability
from costream.report.html_tables import Cell, number, table
from costream.report.markup import Html, name, tag
from costream.training.report.charts import confusion_table, reliability_chart
from costream.training.report.report_parts import (
    MOST_CONFUSED,
    TrainingReport,
    bar,
    baselines,
    data,
    facts,
    learning,
    page,
    section,
    share,
    use,
)
from costream.training.stream_calibration import Calibration, StreamPredictions, at_temperature
from costream.training.verdict import share_text
from costream.weights_io.card import Timeline


@dataclass(frozen=True)
class SequenceReport(TrainingReport):
    """Contents of the report; the "validation" metrics are of sequences.

    ``streams``: predictions on validation streams, with ground truth; ``calibration``: chosen on
    them; None without streams.
    """

    streams: Sequence[StreamPredictions] = ()
    calibration: Calibration | None = None


def sequence_report(report: SequenceReport) -> str:
    """Return the report as HTML without scripts or external resources."""
    card = report.card
    background = frozenset() if card.background is None else frozenset([card.background])
    report.palette.add(card.labels, card.labels, background)
    return page(
        card,
        _facts(report),
        learning(report.history),
        _classes(report),
        _confusion(report),
        baselines(report, {"Top-1": "top1", "Top-1 of votes": "top1_vote", "mAP": "sequence_mAP"}),
        chosen_settings(report),
        reliability_charts(report),
        data(report.card),
        use(report, "--data FOLDER"),
    )


def _facts(report: SequenceReport) -> Html:
    trained, checked = report.trained.total(), report.checked.total()
    cards = [
        ("Classes", str(len(report.card.labels)), f"with {report.card.background!r}"),
        ("Examples", f"{trained + checked:,}", f"{trained:,} to train, {checked:,} to validate"),
    ]
    if report.validation:
        scores = report.validation[report.card.name]
        low, high = scores["top1_95"]
        over = f"95 % interval over {interval_units(scores)} {low:.2f} to {high:.2f}"
        right = share_text(round(scores["top1"] * scores["sequences"]), scores["sequences"])
        cards.insert(0, ("Top-1", right, over))
    if report.calibration is not None:
        before, after = report.calibration.f1
        cards.append(("F1 of segments", f"{after:.2f}", f"{before:.2f} with the initial settings"))
    return facts(cards, report.verdict)


def _classes(report: SequenceReport) -> Html:
    labels, scores = report.card.labels, report.validation.get(report.card.name, {})
    classes, counts = scores.get("classes", {}), np.array(scores.get("confusion", []), int)
    counts = counts.reshape(-1, len(labels)) if counts.size else np.zeros((len(labels),) * 2, int)
    rows: list[Sequence[Cell]] = []
    for k, label in enumerate(labels):
        paint, right = report.palette.paint(label), int(counts[k, k])
        average = bar(classes.get(label, {}).get("average_precision"), paint)
        shares = [share(right, int(all_.sum()), paint) for all_ in (counts[k], counts[:, k])]
        rows.append([*report.cells(label), average, *shares])
    columns = ("Class", "Trained on", "Validated with", "Average precision", "Recall", "Precision")
    background = report.card.background
    note = (
        f"On validation examples, by the mean over their steps. {background!r} makes no segments."
    )
    return section("Classes", table(columns, rows, numbers=(1, 2)), tag("p", note, class_="note"))


def _confusion(report: SequenceReport) -> Html | None:
    if not report.validation:
        return None
    counts = np.array(report.validation[report.card.name]["confusion"])
    if len(counts) <= MOST_CONFUSED:
        return section("Confusion", confusion_table(counts, report.card.labels))
    wrong = report.validation[report.card.name]["confused"]
    rows = [(name(a), name(b), number(str(n))) for a, b, n in wrong[:MOST_CONFUSED]]
    return section("Confusion", table(("Class", "Predicted as", "Examples"), rows, numbers=(2,)))


def chosen_settings(report: SequenceReport) -> Html | None:
    """Return the section on temperature and timeline; None if they were not chosen."""
    chosen = report.calibration
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
        "time constant of presence": f"{timeline.presence_s:g} s",
        "minimum length": f"{timeline.min_length_s:g} s",
        "gaps bridged up to": f"{timeline.min_gap_s:g} s",
    }


def reliability_charts(report: SequenceReport) -> Html | None:
    """Return the section on calibration; None without validation streams."""
    if not report.streams or report.calibration is None:
        return None
    probabilities = np.concatenate([stream.probabilities for stream in report.streams])
    truth = np.concatenate([stream.labels for stream in report.streams])
    temperature, charts = report.calibration.temperature, []
    for value in dict.fromkeys((1.0, temperature)):
        bins = reliability(at_temperature(probabilities, value), truth)
        title = f"Temperature {value:g}: expected calibration error {calibration_error(bins):.3f}"
        charts.append(reliability_chart(bins, title))
    note = (
        "Accuracy of the best label of a step over its confidence. On the dashed line both are"
        " equal. Bars of full colour hold many steps."
    )
    shown = tag("div", charts, class_="pair")
    return section("Reliability", shown, tag("p", note, class_="note"))
