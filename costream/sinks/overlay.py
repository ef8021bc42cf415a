"""Annotated video: the input of each step with detections, and below it label or cost."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import BinaryIO, Protocol, cast

import av
import numpy as np
import numpy.typing as npt
from av.video.stream import VideoStream

from costream.draw.axis import PixelAxis
from costream.draw.canvas import (
    COLORS,
    DARK,
    GREY,
    WHITE,
    Canvas,
    Color,
    draw_figure,
    fill,
    text_width,
    write,
)
from costream.draw.objects import draw_boxes, draw_tokens
from costream.draw.skeleton import Figure, SkeletonView, figure_in_picture
from costream.formatting import budget_text, share_of_dense, share_text, tokens_text
from costream.records import (
    Box,
    Compute,
    Gap,
    Head,
    Header,
    Objects,
    Picture,
    Prediction,
    Record,
    Scored,
    Summary,
    VideoFrame,
    finds_objects,
    heads_of,
)
from costream.sinks.atomic import BinaryFile
from costream.sinks.base import output_file

BOX = (960, 720)  # width and height of a page without a video frame


@output_file("mp4", about="annotated video", binary=True, draws=(960, 720), order=11)
class Overlay:
    """Annotated video with one frame per step, and panels below it.

    Skeletons without video are drawn on a plain page, features and audio get an empty one. Time
    counts from the first picture. The label is the best event of the newest prediction, in its
    colour from the threshold on; each head has its own panel. Objects have boxes with label, id
    and score, the computed tokens are tinted, and the panel shows the cost.
    """

    def __init__(self, out: BinaryFile) -> None:
        self._out = out
        self._movie: Movie | None = None
        self._panels: list[Panel] = []
        self._rate_hz = 0.0
        self._view = SkeletonView()
        self._boxes: tuple[Box, ...] = ()  # of the current step, until its picture arrives
        self._colors: dict[str, Color] = {}

    def open(self, header: Header) -> None:
        """Open the file; its frame size is known with the first picture."""
        self._out.open()
        self._rate_hz = header.rate_hz
        if finds_objects(header):
            if len(header.labels) <= len(COLORS):  # else assigned to labels as they appear
                self._colors = dict(zip(header.labels, COLORS, strict=False))
            self._panels.append(CostPanel(header))
            return
        taken = 0  # colours
        for name, head in heads_of(header).items():
            panel = HeadPanel(header, head, name, taken)
            self._panels.append(panel)
            taken += len(panel.events)

    def write(self, record: Record) -> None:
        """Store the content to be shown from the next picture on."""
        if isinstance(record, Objects):
            self._boxes = record.boxes
            for box in record.boxes:
                self._colors.setdefault(box.label, COLORS[len(self._colors) % len(COLORS)])
        for panel in self._panels:
            panel.write(record)

    def draw(self, picture: Picture) -> None:
        """Add a picture; one without a finite time is skipped."""
        boxes, self._boxes = self._boxes, ()
        if not math.isfinite(picture.time_s):
            return
        page, figure = self._seen(picture)
        movie = self._opened(page)
        if movie is None:
            return
        above, below = self._parts(movie, page)
        size = (page.shape[1], page.shape[0])
        if isinstance(picture.item, VideoFrame):
            rgb = picture.item.rgb
            seen = (rgb.shape[1], rgb.shape[0])
            if picture.updated is not None:
                draw_tokens(above, picture.updated, seen, size)
            draw_boxes(above, boxes, self._colors, picture.item.size or seen, size)
        if figure is not None:
            draw_figure(above, figure, *size)
        for k, panel in enumerate(self._panels):
            panel.draw(below[k * PANEL : (k + 1) * PANEL], picture)
        self._out.attempt(partial(movie.add, picture.time_s))

    def close(self, summary: Summary) -> None:
        """Finish; a run without pictures leaves a single empty frame."""
        movie = self._movie
        if movie is None:
            page = _empty_page()
            movie = self._opened(page)
            if movie is not None:
                self._parts(movie, page)
                self._out.attempt(partial(movie.add, 0.0))
        if movie is not None and self._out.file is not None:
            self._out.attempt(movie.finish)
        self._out.finish()

    def _seen(self, picture: Picture) -> tuple[Canvas, Figure | None]:
        """Return the image of a picture, and the figure on it."""
        item, skeleton = picture.item, picture.skeleton
        if isinstance(item, VideoFrame):
            page = item.rgb if item.drawing is None else item.drawing()
            return page, None if skeleton is None else figure_in_picture(skeleton)
        return _empty_page(), None if skeleton is None else self._view.figure(skeleton)

    def _opened(self, page: Canvas) -> Movie | None:
        """Return the movie, opened with the first page; None after an error of the file."""
        file = self._out.file
        if file is not None and self._movie is None:
            height = page.shape[0] + PANEL * len(self._panels)
            self._movie = Movie(page.shape[1], height, self._rate_hz)
            self._out.attempt(partial(self._movie.open, file))
        return None if file is None else self._movie

    def _parts(self, movie: Movie, page: Canvas) -> tuple[Canvas, Canvas]:
        """Return the canvas of the next frame: above with ``page`` on it, below for panels."""
        canvas, height = movie.page(), PANEL * len(self._panels)
        above, below = canvas[:-height], canvas[-height:]
        # A stream may change its frame size; a file cannot.
        part = page[: above.shape[0], : above.shape[1]]
        above[: part.shape[0], : part.shape[1]] = part
        return above, below


def _empty_page() -> Canvas:
    return np.full((BOX[1], BOX[0], 3), 48, np.uint8)


# Cost panel of annotated videos with objects.

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
            self._write_cost(panel, self._compute, most)
        write_clock(panel, self._axis.clock(time_s), 10)
        top = PANEL - _BELOW - _CURVE
        panel[top:-_BELOW] = _BACK
        panel[top:-_BELOW][self._curve()] = _COLOR
        fill(panel, self._axis.x(time_s) - 1, top - 3, 2, _CURVE + 6, WHITE)

    def _write_cost(self, panel: Canvas, compute: Compute, most: int | None) -> None:
        """Write as much text as fits beside the clock."""
        words = (share_text(compute), tokens_text(compute, most), budget_text(compute))
        shown = [word for word in words if word]
        while text_width(", ".join(shown), 2) > panel.shape[1] - 130 and len(shown) > 1:
            del shown[-1]
        write(panel, 12, 10, ", ".join(shown), WHITE)

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


# Video file of frames that are drawn one after another.

_TIME_BASE = Fraction(1, 90_000)


class Movie:
    """H.264 in MP4 (MPEG-4 Part 2 if PyAV has no x264), with a time stamp for each frame."""

    def __init__(self, width: int, height: int, rate_hz: float) -> None:
        width, height = width + width % 2, height + height % 2  # the codecs require even sizes
        self._empty: Canvas = np.full((height, width, 3), DARK, np.uint8)
        self._canvas: Canvas = self._empty.copy()
        self._rate = Fraction(rate_hz).limit_denominator(1000)
        self._began_s: float | None = None
        self._ticks = -1

    def page(self) -> Canvas:
        """Return the empty canvas of the next frame."""
        self._canvas[:] = self._empty
        return self._canvas

    def open(self, file: BinaryIO) -> None:
        """Open the container and the encoder."""
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
        """Encode the canvas as the frame at ``time_s``."""
        self._began_s = time_s if self._began_s is None else self._began_s
        frame = av.VideoFrame.from_ndarray(self._canvas, format="rgb24")
        ticks = round((time_s - self._began_s) / _TIME_BASE)
        self._ticks = frame.pts = max(ticks, self._ticks + 1)
        frame.time_base = _TIME_BASE
        self._container.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Flush the encoder, and write the index."""
        self._container.mux(self._stream.encode(None))
        self._container.close()


# Panels below the frames of an annotated video.

PANEL = 76  # height of a panel, pixels
_STRIP = 22  # height of the timeline in it
_NOTHING = 60  # grey level of the timeline without an event


class Panel(Protocol):
    """Receiver of the records of a run that draws the current state on [PANEL, W, 3]."""

    def write(self, record: Record) -> None: ...  # noqa: D102

    def draw(self, panel: Canvas, picture: Picture) -> None: ...  # noqa: D102


class HeadPanel:
    """Panel with the label of a head, its score, the time, and the timeline so far.

    ``name``: ``model`` of the head's records. ``taken``: number of colours used by the panels
    before it.
    """

    def __init__(self, header: Header, head: Head, name: str | None, taken: int) -> None:
        self.events = [label for label in head.labels if label != head.background]
        self._name = name
        self._step_s, self._delay_s = 1 / header.rate_hz, head.delay_s
        self._threshold_of = head.threshold_of
        self._color = {label: COLORS[k % len(COLORS)] for k, label in enumerate(self.events, taken)}
        self._axis = PixelAxis(header.duration_s)
        self._best: Scored | None = None
        self._painted_s: float | None = None  # the timeline is painted up to here
        self._strip = np.zeros((_STRIP, 0, 3), np.uint8)

    def write(self, record: Record) -> None:
        """Store the newest scores; a gap interrupts the timeline."""
        if isinstance(record, Prediction) and record.model == self._name:
            self._best = next((pair for pair in record.top if pair[0] in self._color), None)
        elif isinstance(record, Gap):
            self._best = self._painted_s = None

    def draw(self, panel: Canvas, picture: Picture) -> None:
        """Draw label, clock and timeline."""
        width, time_s = panel.shape[1], picture.time_s
        if not self._axis.began:
            self._axis.begin(time_s, width)
            self._strip = np.full((_STRIP, width, 3), _NOTHING, np.uint8)
        color = self._paint(time_s)
        write_clock(panel, self._axis.clock(time_s), 17)
        if self._best is not None:
            label, score = self._best
            write(panel, 12, 14, f"{label} {score:.2f}", color or GREY, 3)
        panel[-_STRIP - 6 : -6] = self._strip
        fill(panel, self._axis.x(time_s) - 1, PANEL - _STRIP - 9, 2, _STRIP + 6, WHITE)

    def _paint(self, time_s: float) -> Color | None:
        """Paint the timeline up to now, less the delay; return the colour of the current event."""
        best = self._best
        sure = best is not None and best[1] >= self._threshold_of(best[0])
        color = self._color[best[0]] if best is not None and sure else None
        end_s = time_s + self._step_s
        over = self._axis.scroll(end_s)
        if over:
            self._strip = np.roll(self._strip, -over, axis=1)
            self._strip[:, -over:] = _NOTHING
        end_s -= self._delay_s
        begin_s = end_s - self._step_s if self._painted_s is None else self._painted_s
        if color is not None:
            x, end = self._axis.x(begin_s), self._axis.x(end_s)
            fill(self._strip, x, 0, end - x, _STRIP, color)
        self._painted_s = end_s
        return color


def write_clock(panel: Canvas, clock: str, y: int) -> None:
    """Write the time at the right."""
    write(panel, panel.shape[1] - text_width(clock, 2) - 12, y, clock, GREY)
