"""Cost panel of annotated videos with objects."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from costream.draw.axis import PixelAxis
from costream.draw.canvas import WHITE, Canvas, Color, fill, write
from costream.records import Compute, Gap, Header, Picture, Record
from costream.sinks.cost import budget_text, share_of_dense, share_text, tokens_text
from costream.sinks.font import text_width
from costream.sinks.panel import PANEL, write_clock

_CURVE = 38  # height of the dense model's cost, pixels
_BELOW = 6  # margin below the curve, pixels
_BACK: Color = (60, 60, 60)
_COLOR: Color = (86, 180, 233)


class CostPanel:
    """Panel of tokens, share of the dense cost, budget and time, with that share as a curve.

    The curve's full height is the cost of the dense model. A column is the mean of its steps.
    """

    def __init__(self, header: Header) -> None:
        self._step_s = 1 / header.rate_hz
        self._axis = PixelAxis(header.duration_s)
        self._compute: Compute | None = None
        self._painted_s: float | None = None  # the curve is painted up to here
        self._totals = np.zeros((2, 0))  # of each column: sum of the shares, number of steps

    def write(self, record: Record) -> None:
        """Store the newest cost; a gap interrupts the curve."""
        if isinstance(record, Compute):
            self._compute = record
        elif isinstance(record, Gap):
            self._painted_s = None

    def draw(self, panel: Canvas, picture: Picture) -> None:
        """Draw the text and the curve."""
        width, time_s = panel.shape[1], picture.time_s
        if not self._axis.began:
            self._axis.begin(time_s, width)
            self._totals = np.zeros((2, width))
        if self._compute is not None:
            self._add(share_of_dense(self._compute), time_s + self._step_s)
            most = None if picture.updated is None else picture.updated.size
            self._tell(panel, self._compute, most)
        write_clock(panel, self._axis.clock(time_s), 10)
        top = PANEL - _BELOW - _CURVE
        panel[top:-_BELOW] = _BACK
        panel[top:-_BELOW][self._curve()] = _COLOR
        fill(panel, self._axis.x(time_s) - 1, top - 3, 2, _CURVE + 6, WHITE)

    def _tell(self, panel: Canvas, compute: Compute, most: int | None) -> None:
        """Write as much text as fits beside the clock."""
        words = (share_text(compute), tokens_text(compute, most), budget_text(compute))
        told = [word for word in words if word]
        while text_width(", ".join(told), 2) > panel.shape[1] - 130 and len(told) > 1:
            del told[-1]
        write(panel, 12, 10, ", ".join(told), WHITE)

    def _add(self, share: float, end_s: float) -> None:
        """Add a step's share of the dense cost to the columns that it covers."""
        over = self._axis.scroll(end_s)
        if over:
            self._totals = np.roll(self._totals, -over, axis=1)
            self._totals[:, -over:] = 0
        begin_s = end_s - self._step_s if self._painted_s is None else self._painted_s
        self._painted_s = end_s
        first = max(0, int(self._axis.x(begin_s)))
        last = max(first + 1, int(self._axis.x(end_s)))
        self._totals[:, first:last] += np.array([[share], [1.0]])

    def _curve(self) -> npt.NDArray[np.bool_]:
        """Return which pixels [_CURVE, W] are below the curve."""
        shares, steps = self._totals
        heights = np.rint(_CURVE * (shares / np.maximum(steps, 1)).clip(0, 1))
        heights = np.maximum(heights, steps > 0)  # tiny costs stay visible
        below: npt.NDArray[np.bool_] = np.arange(_CURVE, 0, -1)[:, None] <= heights
        return below
