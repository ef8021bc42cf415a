"""Annotated video: the input of each step with detections, and below it labels or cost."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from costream.core.places import Place, places_of
from costream.core.records import (
    AudioBlock,
    Box,
    Header,
    Objects,
    Picture,
    Record,
    SkeletonFrame,
    Summary,
    VideoFrame,
    finds_objects,
    heads_of,
)
from costream.draw.box_overlay import draw_boxes, draw_places, draw_tokens, name_persons
from costream.draw.canvas import Canvas, draw_figure
from costream.draw.palette import BACKGROUND, Palette
from costream.draw.panels import PANEL, CostPanel, HeadPanel, Panel, empty_page
from costream.draw.person_actions import PersonActions
from costream.draw.skeleton import Figure, SkeletonView, figure_in_picture
from costream.draw.sound_page import SoundPage
from costream.sinks.atomic import BinaryFile
from costream.sinks.base import output_file
from costream.sinks.movie import Movie

log = logging.getLogger("costream")

BOX = (960, 720)  # width and height of a page without a video frame
_SCROLLS = 3  # pictures of a step of sound


# The size is a literal: keywords are read from the source before this file is imported.
@output_file("mp4", about="annotated video", binary=True, draws=(960, 720), order=11)
class Overlay:
    """Annotated video with one frame per step, and panels below it.

    Skeletons without video are drawn on a plain page, sound is a spectrogram with several frames
    per step, and features get an empty page. Time counts from the first picture. The best labels
    of the newest prediction are below, each head in its own panel, with the timeline of what is
    at or above its threshold. Objects have boxes with label, id and score, or what the person
    does, places and computed tokens are outlined, and the panel shows the cost. Persons without
    a box have their number and action above them. The sound of a media file is kept.
    """

    def __init__(self, out: BinaryFile) -> None:
        self._out = out
        self._movie: Movie | None = None
        self._panels: list[Panel] = []
        self._step_s = 1.0
        self._view = SkeletonView()
        self._boxes: tuple[Box, ...] = ()  # of the current step, until its picture arrives
        self._palette = Palette()
        self._places: tuple[Place, ...] = ()
        self._sound_page: SoundPage | None = None
        self._sound: Path | None = None  # file whose sound is kept
        self._actions = PersonActions({})

    def open(self, header: Header) -> None:
        """Open the file; its frame size is known with the first picture."""
        self._out.open()
        self._step_s = 1 / header.rate_hz
        self._palette, self._places = Palette.of(header), places_of(header.options)
        if header.kind == "audio":
            self._sound_page = SoundPage(self._step_s)
        self._sound = _sound_of(header)
        self._actions = PersonActions(heads_of(header))
        if finds_objects(header):
            self._panels.append(CostPanel(header, self._palette))
            return
        for name, head in heads_of(header).items():
            self._panels.append(HeadPanel(header, head, name, self._palette))

    def write(self, record: Record) -> None:
        """Store the content to be shown from the next picture on."""
        if isinstance(record, Objects):
            self._boxes = record.boxes
        self._actions.write(record)
        for panel in self._panels:
            panel.write(record)

    def draw(self, picture: Picture) -> None:
        """Add a picture; one without a finite time is skipped."""
        boxes, self._boxes = self._boxes, ()
        if not math.isfinite(picture.time_s):
            return
        if self._sound_page is not None:
            self._sound_page.add(picture)
        if self._sound_page is not None and isinstance(picture.item, AudioBlock):
            begin_s, length_s = picture.time_s - self._step_s, self._step_s / _SCROLLS
            for k, page in enumerate(self._sound_page.pages(_SCROLLS)):
                self._add(page, begin_s + k * length_s, length_s, picture, None, ())
            return
        page, figure = self._seen(picture)
        self._add(page, picture.time_s, self._step_s, picture, figure, boxes)

    def close(self, summary: Summary) -> None:
        """Finish; a run without pictures leaves a single empty frame."""
        movie = self._movie
        if movie is None:
            page = empty_page(*BOX)
            movie = self._opened(page)
            if movie is not None:
                self._parts(movie, page)
                self._out.attempt(partial(movie.add, 0.0))
        if movie is not None and self._out.file is not None:
            self._out.attempt(movie.finish)
        self._out.finish()

    def _add(
        self,
        page: Canvas,
        time_s: float,
        length_s: float,
        picture: Picture,
        figure: Figure | None,
        boxes: tuple[Box, ...],
    ) -> None:
        """Add ``page`` to the movie, with everything on and below it, at ``time_s``."""
        movie = self._opened(page)
        if movie is None:
            return
        above, below = self._parts(movie, page)
        size, updated = (page.shape[1], page.shape[0]), picture.updated
        if isinstance(picture.item, VideoFrame):
            rgb = picture.item.rgb
            seen = (rgb.shape[1], rgb.shape[0])
            if updated is not None:
                draw_tokens(above, updated, seen, size)
            draw_places(above, self._places, picture.item.size or seen, size)
            source, paint = picture.item.size or seen, self._palette.paint
            draw_boxes(above, boxes, paint, source, size, self._actions.caption)
        if figure is not None:
            draw_figure(above, figure, *size)
            if not figure.square:
                boxed, numbers = {box.id for box in boxes}, _numbers(picture.skeleton)
                names = ["" if n in boxed else self._actions.name(n) for n in numbers]
                name_persons(above, figure, names, BACKGROUND, size)
        tokens = None if updated is None else updated.size
        for k, panel in enumerate(self._panels):
            panel.draw(below[k * PANEL : (k + 1) * PANEL], time_s, length_s, tokens)
        self._out.attempt(partial(movie.add, time_s))

    def _seen(self, picture: Picture) -> tuple[Canvas, Figure | None]:
        """Return the image of a picture, and the figure on it."""
        item, skeleton = picture.item, picture.skeleton
        if isinstance(item, VideoFrame):
            page = item.rgb if item.drawing is None else item.drawing()
            return page, None if skeleton is None else figure_in_picture(skeleton)
        return empty_page(*BOX), None if skeleton is None else self._view.figure(skeleton)

    def _opened(self, page: Canvas) -> Movie | None:
        """Return the movie, opened with the first page; None after an error of the file."""
        file = self._out.file
        if file is not None and self._movie is None:
            height = page.shape[0] + PANEL * len(self._panels)
            rate_hz = (1 if self._sound_page is None else _SCROLLS) / self._step_s
            self._movie = Movie(page.shape[1], height, rate_hz, self._sound)
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


def _numbers(skeleton: SkeletonFrame | None) -> Sequence[int]:
    """Return the numbers of the persons of a skeleton, in the order of its slots."""
    if skeleton is None:
        return ()
    return skeleton.persons or range(1, len(skeleton.joints) + 1)


def _sound_of(header: Header) -> Path | None:
    """Return the file to read the sound from a second time; None if that is impossible."""
    if header.kind not in ("audio", "video"):
        return None
    path = Path(header.source)
    if header.began is None and path.is_file():
        return path
    if header.kind == "audio":
        why = "it is live, or a pipe, and cannot be read a second time"
        log.warning("%s: the annotated video has no sound: %s", header.source, why)
    return None
