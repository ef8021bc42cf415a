"""Snapshots: the picture of the step at which an alert fired, with boxes and places, as JPEG."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from costream.core.errors import OutputError
from costream.core.places import Place
from costream.core.records import Box, VideoFrame
from costream.sinks.atomic import replace_file
from costream.sinks.snapshot import jpeg_of

SUFFIX = ".jpg"
BOX = (1280, 720)  # largest size of a picture


@dataclass(frozen=True)
class Scene:
    """The picture of a step: its frame, the objects in it, and the places of its feed."""

    frame: VideoFrame
    boxes: tuple[Box, ...]
    places: tuple[Place, ...]

    def jpeg(self) -> bytes:
        """Draw the picture."""
        frame = self.frame
        rgb = frame.rgb if frame.drawing is None else frame.drawing()
        source = frame.size or (rgb.shape[1], rgb.shape[0])
        return jpeg_of(rgb, source, self.boxes, self.places)


@dataclass(frozen=True)
class RemoteScene:
    """The newest picture of a feed that another process watches; ``jpeg`` asks it to draw it."""

    jpeg: Callable[[], bytes]


class AlertPicture:
    """A scene as JPEG. It is drawn once, by the first thread that calls ``jpeg``.

    ``path``: where it is written; None: nowhere. Pickled, it is drawn and written first.
    """

    def __init__(self, scene: Scene | RemoteScene, path: Path | None) -> None:
        self.path = path
        self._scene: Scene | RemoteScene | None = scene
        self._lock = threading.Lock()  # guards the rest
        self._jpeg = b""
        self._problem: str | None = None  # why it could not be written

    def jpeg(self) -> bytes:
        """Return the picture, after writing its file. Does not raise if that fails."""
        with self._lock:
            scene, self._scene = self._scene, None
            if scene is not None:
                self._jpeg = scene.jpeg()
                self._write()
            return self._jpeg

    def save(self) -> None:
        """Write the file, unless that was done. Raises OutputError if it could not be written."""
        self.jpeg()
        if self._problem is not None:
            raise OutputError(f"cannot be written ({self._problem})", where=self.path)

    def __getstate__(self) -> dict[str, object]:
        self.jpeg()
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def _write(self) -> None:
        if self.path is None:
            return
        try:
            replace_file(self.path, self._jpeg)
        except OSError as error:
            self._problem = error.strerror or type(error).__name__
