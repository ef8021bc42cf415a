"""Common parts of the HTML training reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from costream import __version__
from costream.checkpoints.card import Card
from costream.report.markup import Html, join, name, tag
from costream.report.page import page_foot, page_head
from costream.report.palette import Palette
from costream.report.tables import Cell, number, table
from costream.report.timeline import swatch
from costream.training.own_charts import curves

MOST_CONFUSED = 40  # largest number of classes of a legible confusion matrix
_NONE = "There were no validation examples, so the quality of these weights is unknown."


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
    foot = page_foot(f"Made by costream train {__version__}.")
    return page_head(f"{card.name}: training report") + body + "\n" + foot


def section(title: str, *content: Html) -> Html:
    """Return a section with a heading."""
    return tag("section", tag("h3", title), content)


def facts(cards: Sequence[tuple[str, str, str]], *, checked: bool) -> Html:
    """Return key figures (name, value, note); ``checked``: there were validation examples."""
    shown = (
        tag("div", tag("dt", k), tag("dd", v, class_="value"), tag("dd", more, class_="more"))
        for k, v, more in cards
    )
    note = None if checked else tag("p", _NONE, class_="note")
    return join(tag("dl", shown, class_="facts"), note)


def learning(history: Sequence[dict[str, float]]) -> Html | None:
    """Return the curves of a training's history, see ``Watch``."""
    if not history:
        return None
    names = list(dict.fromkeys(key for row in history for key in row if key != "step"))
    losses = [n for n in names if n.endswith("loss")]
    others = [n for n in names if n not in losses]
    drawn = [curves(history, some, "Figures over steps") for some in (losses, others) if some]
    note = "Figures over the training steps; validation examples were not trained on."
    return section("Learning", *drawn, tag("p", note, class_="note"))


def data(card: Card) -> Html:
    """Return the section on the training data, from the card."""
    rows = (
        ("Trained on", card.trained_on),
        ("Split", card.split),
        ("Limits", card.limits),
        ("Licence", card.licence),
    )
    return section("Data", table(("Item", "Value"), rows))


def use(file: str, measured: str) -> Html:
    """Return example commands for the weights; ``measured``: the options of ``evaluate``."""
    calls = (
        f"costream detect FILE -m {file}",
        f"costream models show {file}",
        f"costream evaluate -m {file} {measured}",
    )
    lines = (tag("li", tag("code", call)) for call in calls)
    return section("Use", tag("ul", lines, class_="calls"))


def figure(value: float | None) -> Cell:
    """Return a value with three decimals as a table cell; a dash for None."""
    return "–" if value is None else number(f"{value:.3f}")
