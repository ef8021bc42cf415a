"""What the reports of trainings have in common, whatever was learnt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from costream import __version__
from costream.models.card import Card
from costream.report.markup import Html, join, name, tag
from costream.report.page import page_foot, page_head
from costream.report.palette import Palette
from costream.report.strip import swatch
from costream.report.tables import Cell, number, table
from costream.training.own_charts import curves

MOST_CONFUSED = 40  # classes of a confusion matrix that is still read
_NONE = "There were no validation examples, so nothing says how good these weights are."


@dataclass(frozen=True)
class Training:
    """What the report tells of any training.

    ``card``: the one that is written. ``trained``, ``checked``: examples of each label, or boxes.
    ``history``: rows with "step" and figures.
    """

    card: Card
    file: str  # name of the weights
    trained: Counter[str]
    checked: Counter[str]
    history: Sequence[dict[str, float]] = ()
    _: KW_ONLY
    palette: Palette = field(default_factory=Palette)

    @property
    def validation(self) -> dict[str, dict[str, Any]]:
        """The metrics of the network and of simpler answers, by name; empty without examples."""
        scores: dict[str, dict[str, Any]] = self.card.metrics.get("validation", {})
        return scores

    def cells(self, label: str) -> list[Cell]:
        """Give a label in its colour, and how many examples it was trained on and checked with."""
        colour = swatch(self.palette.paint(label))
        counts = (number(f"{many[label]:,}") for many in (self.trained, self.checked))
        return [tag("span", colour, name(label), class_="label"), *counts]


def page(card: Card, *parts: Html | None) -> str:
    """Give the page of these parts: HTML that needs no network and no script."""
    head = tag("header", tag("h1", name(card.name)), tag("p", card.description, class_="who"))
    body = tag("article", join(head, *parts))
    foot = page_foot(f"Made by costream train {__version__}.")
    return page_head(f"{card.name}: what was learnt") + body + "\n" + foot


def section(title: str, *content: Html) -> Html:
    """Give a part of the page."""
    return tag("section", tag("h3", title), content)


def facts(cards: Sequence[tuple[str, str, str]], *, checked: bool) -> Html:
    """Give name, value and more of some figures; ``checked``: there were validation examples."""
    shown = (
        tag("div", tag("dt", k), tag("dd", v, class_="value"), tag("dd", more, class_="more"))
        for k, v, more in cards
    )
    note = None if checked else tag("p", _NONE, class_="note")
    return join(tag("dl", shown, class_="facts"), note)


def learning(history: Sequence[dict[str, float]]) -> Html | None:
    """Give the curves of a training's history, see ``Watch``."""
    if not history:
        return None
    names = list(dict.fromkeys(key for row in history for key in row if key != "step"))
    losses = [n for n in names if n.endswith("loss")]
    others = [n for n in names if n not in losses]
    drawn = [curves(history, some, "Figures over steps") for some in (losses, others) if some]
    note = "Over the steps of training; what is called validation was not trained on."
    return section("Learning", *drawn, tag("p", note, class_="note"))


def data(card: Card) -> Html:
    """Give what a card says of the data."""
    rows = (
        ("Trained on", card.trained_on),
        ("Split", card.split),
        ("Limits", card.limits),
        ("Licence", card.licence),
    )
    return section("Data", table(("What", "Which"), rows))


def use(file: str, measured: str) -> Html:
    """Give how the weights are used; ``measured``: the options with which they are evaluated."""
    calls = (
        f"costream detect FILE -m {file}",
        f"costream models show {file}",
        f"costream evaluate -m {file} {measured}",
    )
    lines = (tag("li", tag("code", call)) for call in calls)
    return section("Use", tag("ul", lines, class_="calls"))


def figure(value: float | None) -> Cell:
    """Give a figure as a cell of a table."""
    return "–" if value is None else number(f"{value:.3f}")
