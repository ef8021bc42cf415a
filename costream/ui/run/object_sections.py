"""Line groups of the live view of a run that finds objects."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from costream.core.formatting import (
    budget_text,
    clean,
    share_text,
    tokens_text,
)
from costream.ui.run.detection_state import DetectionState
from costream.ui.run.sections import MOST_GUTTER, LineGroups
from costream.ui.run.state import RunState
from costream.ui.run.tracks import HeadState
from costream.ui.screen import Viewport

_MOST_BOXES = 5
_LEAST = 0.1  # score from which on a sound or an action is shown
_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
_LEAST_CURVE = 8  # minimum number of cells
_COUNTS = "123456789+"
_ID_WIDTH = 5  # of " #123"


class ObjectLineGroups(LineGroups):
    """Builder of the line groups of a run that finds objects.

    The objects with the highest scores take the place of the detector's class scores; its timeline
    has a line per label, with the number of objects. Other heads are shown below.
    """

    def __init__(self, state: RunState, objects: DetectionState, name: str) -> None:
        super().__init__(state, name)
        self._objects = objects
        self._rows = 1  # of boxes, at most so far
        self._gutter = min(max(self._gutter, state.label_width + 1), MOST_GUTTER)

    def make(self, viewport: Viewport, now_s: float) -> dict[str, list[Text]]:
        """Return the lines of all groups, also of tokens and the share of the dense cost."""
        groups = super().make(viewport, now_s)
        objects, compute = self._objects, self._objects.compute
        if compute is None:
            return groups
        words = {
            "tokens": tokens_text(compute, objects.most_tokens),
            "share": ", ".join(w for w in (share_text(compute), budget_text(compute)) if w),
        }
        width = max(map(len, words.values()))  # so that values of one step are aligned
        if words["tokens"]:
            most = objects.most_tokens or max(objects.tokens)
            shares = [count / max(most, 1) for count in objects.tokens]
            groups["tokens"] = [self._curve("tokens", shares, words["tokens"], width)]
        if compute.tokens is not None or budget_text(compute):  # else the cost says it
            groups["share"] = [self._curve("share", objects.shares, words["share"], width)]
        return groups

    def _head_name(self, head: str) -> str:
        header = self._state.header
        if (head,) == self._state.sounds:
            return "sound"
        is_last = header.heads is not None and head == header.heads[-1].model
        return "actions" if is_last and header.persons is not None else clean(head)

    def _scores(self, head: str | None, head_state: HeadState) -> list[Text]:
        objects = self._objects
        if head_state is self._state.detector and objects.strip is not None:
            return self._boxes()
        if not head_state.top or self._state.lost or head is None:
            return super()._scores(head, head_state)
        most = len(head_state.top) if head in self._state.sounds else 1
        best = [s for s in head_state.top if s[0] != head_state.head.background and s[1] >= _LEAST]
        lines = self._bars(self._named(self._head_name(head)), head_state, best[:most])
        lines = lines or [self._named(self._head_name(head))]
        return lines + [Text("") for _ in range(most - len(lines))]

    def _boxes(self) -> list[Text]:
        """Return a line for each of the best objects but the persons who have a line of actions."""
        objects, legend = self._objects, self._state.legend
        names = self._state.detector.head.labels
        longest = max((cell_len(clean(name)) for name in names), default=0)
        width = max(self._gutter - 1, longest + objects.tracked * _ID_WIDTH)
        width = min(width, self._viewport.width // 3)
        lines = []
        for box in objects.boxes:
            if f"{clean(box.label)} {box.id}" in self._state.head_states:
                continue
            name = clean(box.label) if box.id is None else f"{clean(box.label)} #{box.id}"
            bar = self._bar(box.score, self._viewport.width - width - 7)
            line = Text.assemble(set_cell_size(name, width), " ", (bar, legend.color(box.label)))
            lines.append(line.append(f" {box.score:5.2f}"))
        # A constant number of lines, so that nothing below moves when an object comes or goes.
        self._rows = max(self._rows, min(len(lines), _MOST_BOXES))
        return lines[: self._rows] + [Text("") for _ in range(self._rows - len(lines))]

    def _now(self, head: str | None, head_state: HeadState) -> Text:
        if head_state is not self._state.detector:
            line = super()._now(head, head_state)
            is_idle = head_state.current is None and head_state.top and not self._state.lost
            if head is None or head in self._state.sounds or not is_idle:
                return line
            return self._named(self._head_name(head)).append("no known action", "dim")
        counts, line = self._objects.counts, self._named("now")
        for label, count in counts:
            line.append(self._mark, self._state.legend.color(label))
            times = f" {self._times}{count}" if count > 1 else ""
            line.append(f"{clean(label)}{times}  ", "bold")
        if counts or self._objects.strip is None:
            return line
        return line.append("nothing", "dim")

    def _timeline(self, head: str | None, head_state: HeadState) -> list[Text]:
        strip = self._objects.strip
        if head_state is not self._state.detector:
            return super()._timeline(head, head_state)
        if strip is None or not self._objects.seen:
            return [Text("")]
        labels = [label for label, _ in self._objects.seen.most_common()]
        width = max(1, self._viewport.width - self._gutter)
        slices = strip.counts(width, self._state.header.duration_s)
        none = "·" if self._viewport.unicode else "."
        lines = []
        for label in labels:
            line = self._named(clean(label))
            marks = (_mark(counts, label, none) for counts in slices)
            for mark, run in groupby(marks):
                style = self._state.legend.block(label) if mark in _COUNTS else "dim"
                line.append(mark * len(list(run)), style)
            lines.append(line)
        return lines

    def _curve(self, name: str, shares: Iterable[float], text: str, width: int) -> Text:
        """Return a line with the latest shares as a curve, newest last, and the text ``text``."""
        line = self._named(name)
        room = self._viewport.width - self._gutter - width - 1
        if room < _LEAST_CURVE:
            return line.append(text, "bold")
        levels = _LEVELS[0] if self._viewport.unicode else _LEVELS[1]
        top = len(levels) - 1
        newest = list(shares)[-room:]
        marks = (levels[min(top, int(len(levels) * max(0.0, share)))] for share in newest)
        line.append("".join(marks).rjust(room), "cyan").append(" ")
        return line.append(text, "bold")


def _mark(counts: dict[str | None, int], label: str, none: str) -> str:
    """Return the rounded mean number of a label per step of a cell; a blank without steps."""
    steps = counts.get(None, 0)
    if not steps:
        return " "
    mean = int(counts.get(label, 0) / steps + 0.5)
    return _COUNTS[min(mean, len(_COUNTS)) - 1] if mean else none
