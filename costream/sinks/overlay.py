"""Annotated video: what each step saw, the skeletons in it, the label, the timeline below."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import BinaryIO, cast

import av
import numpy as np
from av.video.stream import VideoStream

from costream.records import (
    Gap,
    Head,
    Header,
    Picture,
    Prediction,
    Record,
    Scored,
    Summary,
    VideoFrame,
)
from costream.sinks.atomic import BinaryFile
from costream.sinks.base import heads_of
from costream.sinks.drawing import (
    COLORS,
    DARK,
    GREY,
    WHITE,
    Canvas,
    Color,
    draw_figure,
    fill,
    write,
)
from costream.sinks.figure import Figure, View, figure_in_picture
from costream.sinks.font import text_width

BOX = (960, 720)  # width and height of a page without a picture
_PANEL = 76  # height of what is below the picture
_STRIP = 22  # height of the timeline in it
_SCROLL_S = 60.0  # what the timeline shows when the length is not known
_NOTHING = 60  # grey of the timeline where nothing goes on
_TIME_BASE = Fraction(1, 90_000)


class Overlay:
    """H.264 in MP4 (MPEG-4 Part 2 where PyAV has no x264): one picture a step.

    Skeletons without a picture are drawn on a plain page, features and sound get an empty one.
    Time counts from the first picture. The label is the best event of the newest prediction, in
    its colour from the threshold on; each head has a panel of its own.
    """

    def __init__(self, out: BinaryFile) -> None:
        self._out = out
        self._movie: _Movie | None = None
        self._panels: dict[str | None, _Panel] = {}
        self._view = View()

    def open(self, header: Header) -> None:
        """Begin the file; its size is known with the first picture."""
        self._out.open()
        taken = 0  # colours
        for name, head in heads_of(header).items():
            self._panels[name] = panel = _Panel(header, head, taken)
            taken += len(panel.events)

    def write(self, record: Record) -> None:
        """Take what is to be shown from the next picture on."""
        if isinstance(record, Prediction) and record.model in self._panels:
            self._panels[record.model].predict(record)
        elif isinstance(record, Gap):
            for panel in self._panels.values():
                panel.interrupt()

    def draw(self, picture: Picture) -> None:
        """Add a picture; one without a time has no place."""
        if math.isfinite(picture.time_s):
            self._add(*self._seen(picture), picture.time_s)

    def close(self, summary: Summary) -> None:
        """Finish; a run without pictures leaves a single empty one."""
        if self._movie is None:
            self._add(_empty_page(), None, 0.0)
        movie = self._movie
        if movie is not None and self._out.file is not None:
            self._out.attempt(movie.finish)
        self._out.finish()

    def _seen(self, picture: Picture) -> tuple[Canvas, Figure | None]:
        """Give what the picture shows, and the figure on it."""
        item, skeleton = picture.item, picture.skeleton
        if isinstance(item, VideoFrame):
            page = item.rgb if item.drawing is None else item.drawing()
            return page, None if skeleton is None else figure_in_picture(skeleton)
        return _empty_page(), None if skeleton is None else self._view.figure(skeleton)

    def _add(self, page: Canvas, figure: Figure | None, time_s: float) -> None:
        panels, file = list(self._panels.values()), self._out.file
        if file is None:
            return
        height = _PANEL * len(panels)
        if self._movie is None:
            self._movie = _Movie(page.shape[1], page.shape[0] + height, panels[0].rate_hz)
            self._out.attempt(partial(self._movie.open, file))
        canvas = self._movie.page()
        above, below = canvas[:-height], canvas[-height:]
        # A stream may change the size of its pictures on the way; a file cannot.
        part = page[: above.shape[0], : above.shape[1]]
        above[: part.shape[0], : part.shape[1]] = part
        if figure is not None:
            draw_figure(above, figure, page.shape[1], page.shape[0])
        for k, panel in enumerate(panels):
            panel.draw(below[k * _PANEL : (k + 1) * _PANEL], time_s)
        self._out.attempt(partial(self._movie.add, time_s))


class _Panel:
    """What stands below the picture of a head: label, score and time; the timeline so far.

    ``taken``: how many colours the panels before it have used.
    """

    def __init__(self, header: Header, head: Head, taken: int) -> None:
        self.events = [label for label in head.labels if label != head.background]
        self.rate_hz, self._delay_s = header.rate_hz, head.delay_s
        self._length_s = header.duration_s or _SCROLL_S
        self._scrolls = not header.duration_s
        self._threshold = head.threshold
        self._color = {label: COLORS[k % len(COLORS)] for k, label in enumerate(self.events, taken)}
        self._best: Scored | None = None
        self._left_s: float | None = None  # where the timeline begins
        self._painted_s: float | None = None  # it is painted up to here
        self._strip = np.zeros((_STRIP, 0, 3), np.uint8)

    def predict(self, record: Prediction) -> None:
        """Take the newest scores."""
        self._best = next((pair for pair in record.top if pair[0] in self._color), None)

    def interrupt(self) -> None:
        """Note that what comes next does not go on from what was."""
        self._best = self._painted_s = None

    def draw(self, panel: Canvas, time_s: float) -> None:
        """Draw on ``panel`` [_PANEL, W, 3] what is known at ``time_s``."""
        width = panel.shape[1]
        if self._left_s is None:
            self._left_s = time_s
            self._strip = np.full((_STRIP, width, 3), _NOTHING, np.uint8)
        color = self._paint(time_s)
        clock = short_clock(time_s - self._left_s if not self._scrolls else time_s)
        write(panel, width - text_width(clock, 2) - 12, 17, clock, GREY)
        if self._best is not None:
            label, score = self._best
            write(panel, 12, 14, f"{label} {score:.2f}", color or GREY, 3)
        panel[-_STRIP - 6 : -6] = self._strip
        fill(panel, self._x(time_s) - 1, _PANEL - _STRIP - 9, 2, _STRIP + 6, WHITE)

    def _paint(self, time_s: float) -> Color | None:
        """Paint the timeline up to now, less the delay; give the colour of what goes on."""
        best = self._best
        color = self._color[best[0]] if best and best[1] >= self._threshold else None
        end_s = time_s + 1 / self.rate_hz
        if self._scrolls:
            self._scroll(end_s)
        end_s -= self._delay_s
        begin_s = end_s - 1 / self.rate_hz if self._painted_s is None else self._painted_s
        if color is not None:
            x, end = self._x(begin_s), self._x(end_s)
            fill(self._strip, x, 0, end - x, _STRIP, color)
        self._painted_s = end_s
        return color

    def _scroll(self, end_s: float) -> None:
        """Move the timeline to the left when its end is reached."""
        width = self._strip.shape[1]
        over = math.ceil(self._x(end_s)) - width
        if over > 0 and self._left_s is not None:
            kept = self._strip[:, over:].copy()
            self._strip[:] = _NOTHING
            self._strip[:, : kept.shape[1]] = kept
            self._left_s += over * self._length_s / width

    def _x(self, time_s: float) -> float:
        return (time_s - (self._left_s or 0.0)) / self._length_s * self._strip.shape[1]


class _Movie:
    """The file: pictures with times of their own."""

    def __init__(self, width: int, height: int, rate_hz: float) -> None:
        width, height = width + width % 2, height + height % 2  # the codecs want even sizes
        self._canvas: Canvas = np.empty((height, width, 3), np.uint8)
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._began_s: float | None = None
        self._ticks = -1

    def page(self) -> Canvas:
        """Give the empty canvas of the next picture."""
        self._canvas[:] = DARK
        return self._canvas

    def open(self, file: BinaryIO) -> None:
        """Write the head."""
        self._container = av.open(file, "w", format="mp4")
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        stream = cast(VideoStream, self._container.add_stream(codec, rate=self._rate))
        stream.height, stream.width = self._canvas.shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = _TIME_BASE
        stream.codec_context.thread_count = 1
        if codec == "libx264":
            stream.options = {"preset": "veryfast", "crf": "23"}
        else:
            stream.bit_rate = 4_000_000
        self._stream = stream

    def add(self, time_s: float) -> None:
        """Add what is on the canvas."""
        self._began_s = time_s if self._began_s is None else self._began_s
        frame = av.VideoFrame.from_ndarray(self._canvas, format="rgb24")
        ticks = round((time_s - self._began_s) / _TIME_BASE)
        self._ticks = frame.pts = max(ticks, self._ticks + 1)
        frame.time_base = _TIME_BASE
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Write what is still in the encoder, and the index."""
        self._container.mux(self._stream.encode(None))
        self._container.close()


def short_clock(seconds: float) -> str:
    """Give ``M:SS.s``."""
    tenths = round(10 * max(0.0, seconds))
    return f"{tenths // 600}:{tenths // 10 % 60:02d}.{tenths % 10}"


def _empty_page() -> Canvas:
    return np.full((BOX[1], BOX[0], 3), 48, np.uint8)
