"""Pictures and clips with the boxes of what is in them: YOLO text files, or COCO JSON.

YOLO: a text file for each picture, in a folder that mirrors that of the pictures, with a line
``class x y width height`` for each object, relative to the picture, x and y of its centre; names
of the classes in ``classes.txt`` or ``obj.names`` in that folder or above. Of a clip the frames
have a file each, in a folder named after it; their last digits count the frames from 0.

COCO: ``images``, ``annotations``, ``categories``. Images with ``video_id`` and ``frame_id`` are
frames of the clip among ``videos``: of a video file, or pictures one after another.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from costream.labels.examples import respelled

log = logging.getLogger("costream")

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_NAMES = ("classes.txt", "obj.names")


@dataclass(frozen=True)
class Marks:
    """The true boxes of a picture."""

    boxes: npt.NDArray[np.float64]  # [n, 4], x1, y1, x2, y2
    labels: tuple[str, ...]  # [n]
    relative: bool  # boxes are shares of width and height, not pixels

    def pixels(self, size: tuple[int, int]) -> npt.NDArray[np.float64]:
        """Give the boxes in pixels of a picture of a width and height."""
        return self.boxes * np.tile(size, 2) if self.relative else self.boxes


@dataclass(frozen=True)
class Clip:
    """Pictures that are one stream, and the true boxes of those of which they are known."""

    sources: tuple[str, ...]  # a video, or pictures one after another
    frames: Mapping[int, Marks] = field(default_factory=dict)  # by number of the frame, from 0


def read_boxes(data: Path, labels: Path) -> list[Clip]:
    """Give the pictures and videos in a folder, or a file, whose boxes are known.

    Raises UsageError that says what is wrong in which file and line.
    """
    for path in (data, labels):
        if not path.exists():
            raise UsageError("is not there", where=path)
    clips = _yolo(data, labels) if labels.is_dir() else _coco(data, labels)
    if not any(clip.frames for clip in clips):
        raise UsageError("no boxes for what is there", where=labels, hint=f"pictures are in {data}")
    return clips


def fit_boxes(clips: Sequence[Clip], names: Sequence[str]) -> list[Clip]:
    """Give the clips with labels as ``names`` spell them, without the boxes of others.

    These are warned of. UsageError when none of the labels is known.
    """
    called = respelled(names)
    lacking: Counter[str] = Counter()
    known = 0

    def fit(marks: Marks) -> Marks:
        nonlocal known
        fitted = [called(label) for label in marks.labels]
        lacking.update(m for m, f in zip(marks.labels, fitted, strict=True) if f is None)
        rows = [k for k, name in enumerate(fitted) if name is not None]
        known += len(rows)
        return Marks(marks.boxes[rows], tuple(str(fitted[k]) for k in rows), marks.relative)

    out = [replace(c, frames={k: fit(m) for k, m in c.frames.items()}) for c in clips]
    told = ", ".join(f"{label} ({count})" for label, count in lacking.most_common(8))
    if not known:
        raise UsageError(f"the model finds nothing of what is there: {told or 'no objects at all'}")
    if lacking:
        log.warning("the model does not find these objects, which do not count: %s", told)
    return out


def _yolo(data: Path, labels: Path) -> list[Clip]:
    names = _class_names(labels)
    clips = []
    for path in _files(data):
        place = path.relative_to(data) if data.is_dir() else Path(path.name)
        if path.suffix.lower() in PICTURES:
            own = (labels / place).with_suffix(".txt")
            # A picture without a file has no objects in it: so it is usual.
            marks = _lines(own, names) if own.is_file() else Marks(np.zeros((0, 4)), (), True)
            clips.append((Clip((str(path),), {0: marks}), own.is_file()))
            continue
        folders = (labels / place, (labels / place).with_suffix(""))
        folder = next((f for f in folders if f.is_dir()), None)
        if folder is not None:
            frames = {_number(f): _lines(f, names) for f in sorted(folder.glob("*.txt"))}
            clips.append((Clip((str(path),), frames), bool(frames)))
    return [clip for clip, _ in clips] if any(there for _, there in clips) else []


def _class_names(labels: Path) -> list[str]:
    for folder in (labels, *list(labels.absolute().parents)[:2]):
        for name in _NAMES:
            if (folder / name).is_file():
                text = (folder / name).read_text(encoding="utf-8-sig")
                return [line.strip() for line in text.splitlines() if line.strip()]
    raise UsageError(
        "no names of the classes",
        where=labels,
        hint=f"put {_NAMES[0]}, a name a line, into this folder or above it",
    )


def _lines(path: Path, names: Sequence[str]) -> Marks:
    boxes: list[list[float]] = []
    labels: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        try:
            kind, *numbers = line.split()
            x, y, width, height = map(float, numbers[:4])
            labels.append(names[_index(kind, len(names))])
        except ValueError as error:
            what = f"not 'class x y width height' ({error})"
            raise UsageError(what, where=f"{path}, line {number}") from error
        boxes.append([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    return Marks(np.array(boxes, np.float64).reshape(-1, 4), tuple(labels), True)


def _index(text: str, count: int) -> int:
    if not 0 <= int(text) < count:
        raise ValueError(f"there are {count} classes")
    return int(text)


def _number(path: Path) -> int:
    digits = re.search(r"(\d+)$", path.stem)
    if digits is None:
        raise UsageError("its name does not end in the number of a frame", where=path)
    return int(digits[1])


def _coco(data: Path, path: Path) -> list[Clip]:
    try:
        told = json.loads(path.read_text(encoding="utf-8-sig"))
        names = {c["id"]: str(c["name"]) for c in told["categories"]}
        marks = _annotations(told, names, path)
        videos = {v["id"]: str(v.get("name") or v["file_name"]) for v in told.get("videos", ())}
        clips: dict[Any, list[tuple[int, str, Marks]]] = {}
        for image in told["images"]:
            video = image.get("video_id")
            key = ("picture", image["id"]) if video is None else ("video", video)
            frame = 0 if video is None else int(image["frame_id"])
            clips.setdefault(key, []).append((frame, str(image["file_name"]), marks[image["id"]]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"this is no COCO JSON ({error!r:.80})", where=path) from error
    files = {p.relative_to(data).as_posix(): p for p in _files(data)} if data.is_dir() else {}
    files |= {p.name: p for p in (files.values() if files else [data])}
    out = []
    missing = []
    for (kind, number), frames in clips.items():
        frames.sort(key=lambda row: row[0])
        video = _find(files, videos.get(number, "")) if kind == "video" else None
        pictures = [_find(files, name) for _, name, _ in frames]
        if video is not None:
            out.append(Clip((str(video),), {k: m for k, _, m in frames}))
        elif all(pictures):
            numbered = {k: m for k, (_, _, m) in enumerate(frames)}
            out.append(Clip(tuple(map(str, pictures)), numbered))
        else:
            missing.append(frames[0][1])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        log.warning("%s: not there: %s%s", data, ", ".join(missing[:3]), more)
    return out


def _annotations(told: Any, names: Mapping[Any, str], path: Path) -> dict[Any, Marks]:
    """Give the boxes of every image; groups that were marked as one are left out."""
    rows: dict[Any, list[tuple[list[float], str]]] = {image["id"]: [] for image in told["images"]}
    crowds = 0
    for one in told["annotations"]:
        if one.get("iscrowd"):
            crowds += 1
            continue
        x, y, width, height = map(float, one["bbox"])
        rows[one["image_id"]].append(([x, y, x + width, y + height], names[one["category_id"]]))
    if crowds:
        log.warning("%s: %d crowds do not count", path, crowds)
    return {
        image: Marks(
            np.array([box for box, _ in own], np.float64).reshape(-1, 4),
            tuple(label for _, label in own),
            False,
        )
        for image, own in rows.items()
    }


def _find(files: Mapping[str, Path], name: str) -> Path | None:
    path = Path(name)
    return next((files[n] for n in (path.as_posix(), path.name) if n in files), None) or next(
        (file for file in files.values() if name and file.stem == path.name), None
    )


def _files(data: Path) -> list[Path]:
    if not data.is_dir():
        return [data]
    return sorted(p for p in data.rglob("*") if p.is_file() and not p.name.startswith("."))
