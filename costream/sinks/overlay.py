"""Annotated video: the input of each step with detections, and below it label or cost."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from costream.draw.canvas import COLORS, Canvas, Color, draw_figure
from costream.draw.objects import draw_boxes
from costream.draw.skeleton import Figure, SkeletonView, figure_in_picture
from costream.records import Box, Header, Objects, Picture, Record, Summary, VideoFrame
from costream.sinks.atomic import BinaryFile
from costream.sinks.base import finds_objects, heads_of
from costream.sinks.costpanel import CostPanel
from costream.sinks.movie import Movie
from costream.sinks.panel import PANEL, HeadPanel, Panel
from costream.sinks.tokens import draw_tokens

BOX = (960, 720)  # width and height of a page without a video frame


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
