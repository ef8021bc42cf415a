"""Common parts of the HTML training reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from costream.core.commit import code_version
from costream.draw.palette import Paint, Palette
from costream.report.html_page import page_foot, page_head
from costream.report.html_tables import Cell, number, share_bar, table
from costream.report.markup import Html, join, name, tag
from costream.report.swatches import swatch
from costream.training.report.charts import curves
from costream.training.verdict import share_text
from costream.weights_io.card import Card

MOST_CONFUSED = 40  # largest number of classes of a legible confusion matrix


@dataclass(frozen=True)
class TrainingReport:
    """Contents of every training report.

    ``card``: of the written weights. ``trained``, ``checked``: examples, or boxes, of each label.
    ``history``: rows with "step" and figures.
    """

    card: Card
    file: str  # name of the weight file
    trained: Counter[str]
    checked: Counter[str]
    history: Sequence[dict[str, float]] = ()
    _: KW_ONLY
    verdict: str = ""  # in words; empty: none
    command: str = "detect"  # that runs the model
    palette: Palette = field(default_factory=Palette)

    @property
    def validation(self) -> dict[str, dict[str, Any]]:
        """Metrics of the network and of the baselines, by name; empty without examples."""
        scores: dict[str, dict[str, Any]] = self.card.metrics.get("validation", {})
        return scores

    def cells(self, label: str) -> list[Cell]:
        """Return a label in its colour, and its numbers of training and validation examples."""
        colour = swatch(self.palette.paint(label))
        counts = (number(f"{many[label]:,}") for many in (self.trained, self.checked))
        return [tag("span", colour, name(label), class_="label"), *counts]


def page(card: Card, *parts: Html | None) -> str:
    """Return the page of these parts as HTML without scripts or external resources."""
    head = tag("header", tag("h1", name(card.name)), tag("p", card.description, class_="who"))
    body = tag("article", join(head, *parts))
    foot = page_foot(f"Made by costream train {code_version()}.")
    return page_head(f"{card.name}: training report") + body + "\n" + foot


def section(title: str, *content: Html) -> Html:
    """Return a section with a heading."""
    return tag("section", tag("h3", title), content)


def facts(cards: Sequence[tuple[str, str, str]], verdict: str) -> Html:
    """Return the verdict and key figures (name, value, note)."""
    shown = (
        tag("div", tag("dt", k), tag("dd", v, class_="value"), tag("dd", more, class_="more"))
        for k, v, more in cards
    )
    words = tag("p", tag("b", f"{verdict[:1].upper()}{verdict[1:]}.")) if verdict else None
    return join(words, tag("dl", shown, class_="facts"))


def learning(history: Sequence[dict[str, float]]) -> Html | None:
    """Return the curves of a training's history, see ``EarlyStopping``."""
    if not history:
        return None
    names = list(dict.fromkeys(key for row in history for key in row if key != "step"))
    losses = [n for n in names if n.endswith("loss")]
    others = [n for n in names if n not in losses]
    drawn = [curves(history, group, "Figures over steps") for group in (losses, others) if group]
    note = "Figures over the training steps; validation examples were not trained on."
    return section("Learning", *drawn, tag("p", note, class_="note"))


def baselines(report: TrainingReport, columns: Mapping[str, str]) -> Html | None:
    """Return the metrics of network and baselines; ``columns``: the key of each by its name."""
    if not report.validation:
        return None
    rows = [
        [name(model), *(figure(scores.get(key)) for key in columns.values())]
        for model, scores in report.validation.items()
    ]
    numbers = range(1, len(columns) + 1)
    listed = table(("Model", *columns), rows, numbers=tuple(numbers))
    return section("Compared with baselines", listed)


def bar(value: float | None, paint: Paint) -> Cell:
    """Return a cell with a figure from 0 to 1 as a bar, or a dash for None."""
    return "–" if value is None else share_bar(value, paint, f"{value:.2f}")


def share(right: int, total: int, paint: Paint) -> Cell:
    """Return a cell with a share as a bar, in numbers where they are small; a dash for 0 of 0."""
    return share_bar(right / total, paint, share_text(right, total)) if total else "–"


def data(card: Card) -> Html:
    """Return the section on the training data, from the card."""
    rows = (
        ("Trained on", card.trained_on),
        ("Split", card.split),
        ("Limits", card.limits),
        ("Licence", card.licence),
    )
    return section("Data", table(("Item", "Value"), rows))


def use(report: TrainingReport, measured: str) -> Html:
    """Return example commands for the weights; ``measured``: the options of ``evaluate``."""
    file = report.file
    calls = (
        f"costream {report.command} FILE -m {file}",
        f"costream models show {file}",
        f"costream evaluate -m {file} {measured}",
    )
    lines = (tag("li", tag("code", call)) for call in calls)
    return section("Use", tag("ul", lines, class_="calls"))


def figure(value: float | None) -> Cell:
    """Return a value with three decimals as a table cell; a dash for None."""
    return "–" if value is None else number(f"{value:.3f}")
