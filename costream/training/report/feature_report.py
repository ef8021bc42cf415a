"""HTML report of ``costream train`` on features (``OUTPUT.html``)."""

from __future__ import annotations

from collections.abc import Sequence

from costream.report.html_tables import Cell, number, table
from costream.report.markup import Html, tag
from costream.training.report.report_parts import (
    bar,
    baselines,
    data,
    facts,
    figure,
    learning,
    page,
    section,
    use,
)
from costream.training.report.sequence_report import (
    SequenceReport,
    chosen_settings,
    reliability_charts,
)


def feature_report(report: SequenceReport) -> str:
    """Return the report as HTML without scripts or external resources.

    ``trained``, ``checked``: segments of each label. The "validation" metrics are of frames.
    """
    card = report.card
    report.palette.add(card.labels, card.labels, frozenset(card.labels[:1]))
    columns = {"mAP": "mAP", "Calibrated mAP": "calibrated_mAP", "Accuracy": "accuracy"}
    return page(
        card,
        _facts(report),
        learning(report.history),
        _classes(report),
        baselines(report, columns),
        chosen_settings(report),
        reliability_charts(report),
        data(card),
        use(report, "--data FOLDER --labels FILE"),
    )


def _facts(report: SequenceReport) -> Html:
    trained, checked = report.trained.total(), report.checked.total()
    cards = [
        ("Classes", str(len(report.card.labels)), f"with {report.card.background!r}"),
        ("Segments", f"{trained + checked:,}", f"{trained:,} to train, {checked:,} to validate"),
    ]
    if report.validation:
        scores = report.validation[report.card.name]
        over = f"{scores['frames']:,} frames of {scores['recordings']} recordings"
        cards.insert(0, ("mAP of frames", f"{scores['mAP']:.3f}", over))
    return facts(cards, report.verdict)


def _classes(report: SequenceReport) -> Html:
    classes = report.validation.get(report.card.name, {}).get("classes", {})
    rows: list[Sequence[Cell]] = []
    for label in report.card.labels:
        scores = classes.get(label, {})
        rows.append(
            [
                *report.cells(label),
                number(f"{scores.get('frames', 0):,}"),
                bar(scores.get("average_precision"), report.palette.paint(label)),
                figure(scores.get("calibrated_average_precision")),
            ]
        )
    names = ("Class", "Trained on", "Validated with", "Frames", "AP", "Calibrated AP")
    note = "On the frames of the validation recordings, by the scores of each step."
    return section(
        "Classes", table(names, rows, numbers=(1, 2, 3, 5)), tag("p", note, class_="note")
    )
