"""HTML report of ``costream train`` for object detectors (``OUTPUT.html``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costream.evaluation.metrics.detection import DetectedBoxes, Truth, box_confusion
from costream.report.html_tables import Cell, number, table
from costream.report.markup import Html, tag
from costream.training.report.charts import confusion_table
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


@dataclass(frozen=True)
class DetectorReport(TrainingReport):
    """Contents of the report.

    ``trained``, ``checked``: boxes of each label. ``found`` and ``truth``: detections and ground
    truth of the validation images; empty without validation.
    """

    found: Sequence[DetectedBoxes] = ()
    truth: Sequence[Truth] = ()

    @cached_property
    def counts(self) -> Any:
        """Confusion counts of boxes at the thresholds; the last row and column mean nothing."""
        thresholds = [self.card.timeline.threshold_of(label) for label in self.card.labels]
        return box_confusion(self.found, self.truth, thresholds)


def objects_report(report: DetectorReport) -> str:
    """Return the report as HTML without scripts or external resources."""
    card = report.card
    report.palette.add(card.labels, card.labels, frozenset())
    return page(
        card,
        _facts(report),
        learning(report.history),
        _classes(report),
        _confusion(report),
        baselines(report, {"AP50": "AP50", "AP": "AP"}),
        data(card),
        use(report, "--data FOLDER --labels BOXES"),
    )


def _facts(report: DetectorReport) -> Html:
    trained, checked = report.trained.total(), report.checked.total()
    cards = [
        ("Classes", str(len(report.card.labels)), "object classes"),
        ("Boxes", f"{trained + checked:,}", f"{trained:,} to train, {checked:,} to validate"),
    ]
    if report.validation:
        scores = report.validation[report.card.name]
        if "AP50_95" in scores:
            low, high = scores["AP50_95"]
            more = f"95 % interval over files {low:.2f} to {high:.2f}"
        else:
            more = f"over {scores['pictures']} images"
        cards.insert(
            0, ("AP50", f"{scores['AP50']:.2f}" if scores["AP50"] is not None else "–", more)
        )
    return facts(cards, report.verdict)


def _classes(report: DetectorReport) -> Html:
    card, timeline = report.card, report.card.timeline
    scores = report.validation[card.name]["classes"] if report.validation else {}
    counts = report.counts
    rows: list[Sequence[Cell]] = []
    for k, label in enumerate(card.labels):
        paint, about = report.palette.paint(label), scores.get(label, {})
        right, ways = int(counts[k, k]), (counts[k], counts[:, k])
        shares = [share(right, int(all_.sum()), paint) for all_ in ways]
        threshold = number(f"{timeline.threshold_of(label):g}")
        rows.append([*report.cells(label), threshold, bar(about.get("AP50"), paint), *shares])
    columns = ("Class", "Trained on", "Validated with", "Threshold", "AP50", "Recall", "Precision")
    note = (
        "Counts are of boxes. A box is right if its IoU with an object of its class is at least"
        " 0.5; recall and precision are at the threshold."
    )
    listed = table(columns, rows, numbers=(1, 2, 3))
    return section("Classes", listed, tag("p", note, class_="note"))


def _confusion(report: DetectorReport) -> Html | None:
    if not report.validation or len(report.card.labels) > MOST_CONFUSED:
        return None
    note = "At the thresholds. Last row: boxes without an object; last column: missed objects."
    counts = confusion_table(report.counts, [*report.card.labels, "nothing"])
    return section("Confusion", counts, tag("p", note, class_="note"))
