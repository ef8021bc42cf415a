"""Line groups of the live view for objects and the cost of detecting them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.cells import set_cell_size
from rich.text import Text

from costream.formatting import clean
from costream.sinks.cost import budget_text, share_text, tokens_text
from costream.ui.run.glyphs import Legend
from costream.ui.run.sections import MOST_GUTTER, LineGroups, Viewport
from costream.ui.run.state import RunState
from costream.ui.run.tracks import HeadState
from costream.ui.sight import DetectionState

_MOST_BOXES = 5
_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_LEAST_CURVE = 8  # minimum number of cells
_COUNTS = "123456789+"
_ID_WIDTH = 5  # of " #123"


class ObjectLineGroups(LineGroups):
    """Builder of the line groups of a run that finds objects.

    The objects with the highest scores take the place of class scores; the timeline has a line
    per label, with the number of objects.
    """

    def __init__(self, state: RunState, sight: DetectionState, name: str) -> None:
        super().__init__(state, name)
        self._sight = sight
        longest = max(legend.width + 1 for legend in state.legends.values())
        self._gutter = min(max(self._gutter, longest), MOST_GUTTER)

    def make(self, look: Viewport, now_s: float) -> dict[str, list[Text]]:
        """Return the lines of all groups, with those of tokens and of the share of dense cost."""
        groups = super().make(look, now_s)
        sight, compute = self._sight, self._sight.compute
        if compute is None:
            return groups
        words = {
            "tokens": tokens_text(compute, sight.most_tokens),
            "share": ", ".join(w for w in (share_text(compute), budget_text(compute)) if w),
        }
        width = max(map(len, words.values()))  # so that values of one step are aligned
        if words["tokens"]:
            most = sight.most_tokens or max(sight.tokens)
            shares = [count / max(most, 1) for count in sight.tokens]
            groups["tokens"] = [self._curve("tokens", shares, words["tokens"], width)]
        groups["share"] = [self._curve("dense", sight.shares, words["share"], width)]
        return groups

    def _scores(self, voice: HeadState, legend: Legend) -> list[Text]:
        sight = self._sight
        if sight.strip is None:
            return super()._scores(voice, legend)
        width = max(self._gutter - 1, legend.width + sight.tracked * _ID_WIDTH)
        width = min(width, self._look.width // 3)
        lines = []
        for box in sight.boxes[:_MOST_BOXES]:
            name = clean(box.label) if box.id is None else f"{clean(box.label)} #{box.id}"
            bar = self._bar(box.score, self._look.width - width - 7)
            line = Text.assemble(set_cell_size(name, width), " ", (bar, legend.color(box.label)))
            lines.append(line.append(f" {box.score:5.2f}"))
        # A constant number of lines, so that nothing below moves when an object comes or goes.
        rows = max(1, min(sight.most_boxes, _MOST_BOXES))
        return lines + [Text("") for _ in range(rows - len(lines))]

    def _now(self, head: str | None, voice: HeadState) -> Text:
        words = self._sight.words
        line = self._named("now")
        if words or self._sight.strip is None:
            return line.append(words, "bold")
        return line.append("nothing", "dim")

    def _timeline(self, voice: HeadState, legend: Legend) -> list[Text]:
        strip = self._sight.strip
        if strip is None or not self._sight.seen:
            return [Text("")]
        labels = [label for label, _ in self._sight.seen.most_common()]
        width = max(1, self._look.width - self._gutter)
        slices = strip.counts(width, self._state.header.duration_s)
        lines = []
        for label in labels:
            line = self._named(clean(label))
            marks = (_mark(counts, label, "·" if self._look.unicode else ".") for counts in slices)
            for mark, run in groupby(marks):
                style = legend.block(label) if mark in _COUNTS else "dim"
                line.append(mark * len(list(run)), style)
            lines.append(line)
        return lines

    def _curve(self, name: str, shares: Iterable[float], told: str, width: int) -> Text:
        """Return a line with the latest shares as a curve, newest last, and the text ``told``."""
        line = self._named(name)
        room = self._look.width - self._gutter - width - 1
        if room < _LEAST_CURVE:
            return line.append(told, "bold")
        levels = _LEVELS[0] if self._look.unicode else _LEVELS[1]
        top = len(levels) - 1
        newest = list(shares)[-room:]
        marks = (levels[min(top, int(len(levels) * max(0.0, share)))] for share in newest)
        line.append("".join(marks).rjust(room), "cyan").append(" ")
        return line.append(told, "bold")


def _mark(counts: dict[str | None, int], label: str, none: str) -> str:
    """Return the rounded mean number of a label per step of a cell; a blank without steps."""
    steps = counts.get(None, 0)
    if not steps:
        return " "
    mean = int(counts.get(label, 0) / steps + 0.5)
    return _COUNTS[min(mean, len(_COUNTS)) - 1] if mean else none
