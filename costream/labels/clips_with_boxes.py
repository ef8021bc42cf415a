"""Images and clips with ground-truth boxes: YOLO text files or COCO JSON.

YOLO: one text file per image, in a folder that mirrors the image folder, see ``formats.yolo``;
class names are in ``classes.txt`` or ``obj.names`` in that folder or above. Each frame of a clip
has a file, in a folder named after the clip (any folder for a single clip); the trailing digits of
its name are the frame number, from 0.

COCO: see ``formats.coco_boxes``; a file or a folder of files. A clip is a video file or a sequence
of images. Images without a clip are frames of the video that the file is named after, or of the
only video, numbered by their names as above.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.core.records import IMAGE_SUFFIXES
from costream.core.spelling import stored_path
from costream.labels.collector import shortened
from costream.labels.examples import name_matcher
from costream.labels.formats.coco_boxes import read_coco
from costream.labels.formats.rectangles import Rectangles, frame_number
from costream.labels.formats.yolo import NAMES, class_names, find_names, read_lines

log = logging.getLogger("costream")


@dataclass(frozen=True)
class ImageBoxes:
    """Ground-truth boxes of an image."""

    boxes: npt.NDArray[np.float64]  # [n, 4], x1, y1, x2, y2
    labels: tuple[str, ...]  # [n]
    relative: bool  # boxes are fractions of width and height, not pixels

    def pixels(self, size: tuple[int, int]) -> npt.NDArray[np.float64]:
        """Return the boxes in pixels for an image of a width and height."""
        return self.boxes * np.tile(size, 2) if self.relative else self.boxes


@dataclass(frozen=True)
class ClipWithBoxes:
    """Images that form one stream, with the ground-truth boxes of the annotated ones."""

    sources: tuple[str, ...]  # a video, or a sequence of images
    frames: Mapping[int, ImageBoxes] = field(default_factory=dict)  # by frame number, from 0
    group: str = ""  # "": none

    @property
    def apart(self) -> str:
        """Unit that a split keeps together: the group, or else the source."""
        return self.group or self.sources[0]


def read_boxes(data: Path, labels: Path, group: str | None = None) -> list[ClipWithBoxes]:
    """Return the annotated images and videos in a folder, or of a single file.

    ``group``: the key of COCO's ``videos`` or ``images`` that identifies groups. Boxes without
    width or height are skipped with a warning. Raises UsageError that names the error, file and
    line.
    """
    data, labels = (Path(stored_path(str(path))) for path in (data, labels))
    for path in (data, labels):
        if not path.exists():
            raise UsageError("does not exist", where=path)
    empty: list[str] = []
    files = _files(data)
    if documents := _documents(labels):
        clips = [c for path in documents for c in _coco(data, files, path, group, empty)]
    elif group is None:
        clips = _yolo(data, files, labels, empty)
    else:
        raise UsageError("requires COCO JSON; text files have no columns", where="--group")
    if empty:
        what = "%s: boxes without width or height, left out: %d, the first in %s"
        log.warning(what, labels, len(empty), empty[0])
    if not any(clip.frames for clip in clips):
        raise UsageError(
            "no boxes for any image or video", where=labels, hint=f"they are in {data}"
        )
    return clips


def fit_boxes(clips: Sequence[ClipWithBoxes], names: Sequence[str]) -> list[ClipWithBoxes]:
    """Return the clips with labels spelled as in ``names``, without boxes of other labels.

    Logs a warning about the latter. Raises UsageError when none of the labels is known.
    """
    match = name_matcher(names)
    unknown: Counter[str] = Counter()
    known = 0

    def fit(marks: ImageBoxes) -> ImageBoxes:
        nonlocal known
        fitted = [match(label) for label in marks.labels]
        unknown.update(m for m, f in zip(marks.labels, fitted, strict=True) if f is None)
        rows = [k for k, name in enumerate(fitted) if name is not None]
        known += len(rows)
        return ImageBoxes(marks.boxes[rows], tuple(str(fitted[k]) for k in rows), marks.relative)

    out = [replace(c, frames={k: fit(m) for k, m in c.frames.items()}) for c in clips]
    counts = ", ".join(f"{label} ({count})" for label, count in unknown.most_common(8))
    if not known:
        raise UsageError(f"the model has none of the labels: {counts or 'no boxes'}")
    if unknown:
        log.warning("labels that the model does not have, left out: %s", counts)
    return out


def _documents(labels: Path) -> list[Path]:
    """Return the COCO JSON files; none for YOLO text files."""
    if not labels.is_dir():
        return [labels]
    files = [] if find_names(labels) else sorted(labels.rglob("*.json"))
    # A folder written by ``detect -f coco`` may contain other results, too.
    return [file for file in files if file.name.endswith(".coco.json")] or files


def _yolo(data: Path, files: Sequence[Path], labels: Path, empty: list[str]) -> list[ClipWithBoxes]:
    """Return the clips; append the places of boxes without width or height to ``empty``."""
    names = class_names(labels)
    clips = []
    for path in files:
        place = path.relative_to(data) if data.is_dir() else Path(path.name)
        if path.suffix.lower() in IMAGE_SUFFIXES:
            text_file = (labels / place).with_suffix(".txt")
            # By convention, an image without a file contains no objects.
            found = read_lines(text_file, names) if text_file.is_file() else Rectangles()
            clips.append(
                (ClipWithBoxes((str(path),), {0: _marks(found, True, empty)}), text_file.is_file())
            )
            continue
        folders = [labels / place, (labels / place).with_suffix("")]
        folders += [] if data.is_dir() else [labels]
        folder = next((f for f in folders if f.is_dir()), None)
        if folder is not None:
            texts = [f for f in sorted(folder.glob("*.txt")) if f.name not in NAMES]
            frames = {
                frame_number(f.name, f): _marks(read_lines(f, names), True, empty) for f in texts
            }
            if len(frames) < len(texts):
                raise UsageError("two files have one frame number", where=folder)
            clips.append((ClipWithBoxes((str(path),), frames), bool(frames)))
    return [clip for clip, _ in clips] if any(there for _, there in clips) else []


def _coco(
    data: Path, files: Sequence[Path], labels: Path, group: str | None, empty: list[str]
) -> list[ClipWithBoxes]:
    """Return the clips; append the places of boxes without width or height to ``empty``."""
    videos = [p for p in files if p.suffix.lower() not in IMAGE_SUFFIXES]
    if data.is_dir():  # only the video that the file is named after
        videos = [
            p for p in videos if labels.name.startswith(f"{p.name}.") or labels.stem == p.stem
        ]
    video = videos[0].name if videos and labels not in videos else None
    streams = read_coco(labels, video=video, group=group)
    named = {p.relative_to(data).as_posix(): p for p in files} if data.is_dir() else {}
    named |= {p.name: p for p in files}
    clips = []
    missing = []
    for stream in streams:
        clip = _find(named, stream.video)
        sources = [clip] if clip else [_find(named, image.name) for image in stream.images]
        if not all(sources):
            missing.append(stream.images[0].name)
            continue
        frames = {
            image.frame if clip else place: _marks(image.boxes, False, empty)
            for place, image in enumerate(stream.images)
        }
        if len(frames) < len(stream.images):
            raise UsageError("two images have one frame number", where=f"{labels}, {stream.video}")
        clips.append(ClipWithBoxes(tuple(map(str, sources)), frames, stream.group))
    if missing:
        log.warning("%s: images not found: %s", data, shortened(missing, 3))
    return clips


def _marks(found: Rectangles, relative: bool, empty: list[str]) -> ImageBoxes:
    empty += found.empty
    boxes = np.array(found.corners, np.float64).reshape(-1, 4)
    return ImageBoxes(boxes, tuple(found.labels), relative)


def _find(files: Mapping[str, Path], name: str) -> Path | None:
    path = Path(name)
    return next((files[n] for n in (path.as_posix(), path.name) if n in files), None) or next(
        (file for file in files.values() if name and file.stem == path.name), None
    )


def _files(data: Path) -> list[Path]:
    if not data.is_dir():
        return [data]
    return sorted(p for p in data.rglob("*") if p.is_file() and not p.name.startswith("."))
