"""Boxes from COCO JSON: ``images``, ``annotations``, ``categories``, and optionally ``videos``.

Images with ``video_id`` and ``frame_id`` are frames of a clip.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costream.core.errors import UsageError
from costream.labels.collector import integer, read_text
from costream.labels.formats.rectangles import Rectangles, finite, frame_number

log = logging.getLogger("costream")


@dataclass(frozen=True)
class Image:
    """An image or a frame, and the boxes in it, in pixels."""

    name: str  # of its file
    frame: int  # its number in the clip
    boxes: Rectangles


@dataclass(frozen=True)
class CocoClip:
    """The images of one clip, in the order of its frames, or a single image."""

    video: str  # the name of the clip; "": none
    images: list[Image]
    group: str  # unit that a split keeps together; "": unknown


def read_coco(path: Path, *, video: str | None = None, group: str | None = None) -> list[CocoClip]:
    """Return the images of a file grouped by clip.

    ``video``: the clip of images without one; their names contain the frame numbers. ``group``:
    the key of a clip, or else of its first image, with its group. Raises UsageError that names the
    error and its place.
    """
    try:
        document = json.loads(read_text(path), parse_int=integer)
        clips: dict[Any, Any] = {("clip", v["id"]): v for v in document.get("videos", ())}
        found = _boxes(document, path)
        streams: dict[Any, list[tuple[Image, Any]]] = {}
        for row in document["images"]:
            name, clip, boxes = str(row["file_name"]), row.get("video_id"), found[row["id"]]
            if clip is not None:
                key, frame = ("clip", clip), int(row["frame_id"])
            elif video is not None:
                key, frame = ("video", None), frame_number(name, f"{path}, {name}")
                clips[key] = {"name": video}
            else:
                key, frame = ("image", row["id"]), 0
            streams.setdefault(key, []).append((Image(name, frame, boxes), row))
        return [_stream(rows, clips.get(key, {}), group, path) for key, rows in streams.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"not a COCO JSON file ({error!r:.80})", where=path) from error


def _stream(rows: list[tuple[Image, Any]], clip: Any, group: str | None, path: Path) -> CocoClip:
    rows.sort(key=lambda row: row[0].frame)
    images = [image for image, _ in rows]
    name = str(clip.get("name") or clip.get("file_name") or "")
    if group is None:
        return CocoClip(name, images, "")
    value = clip.get(group, rows[0][1].get(group))
    if value is None:
        raise UsageError(f"{images[0].name} has no {group!r}", where=path)
    return CocoClip(name, images, str(value))


def _boxes(document: Any, path: Path) -> dict[Any, Rectangles]:
    """Return the boxes of every image, without crowd annotations."""
    labels = {c["id"]: str(c["name"]) for c in document["categories"]}
    wheres = {row["id"]: f"{path}, {row['file_name']}" for row in document["images"]}
    out = {image: Rectangles() for image in wheres}
    crowds = 0
    for one in document["annotations"]:
        if one.get("iscrowd"):
            crowds += 1
            continue
        image, label = one["image_id"], labels[one["category_id"]]
        try:
            x, y, width, height = finite(one["bbox"])
        except ValueError as error:
            what = f"not [x, y, width, height] ({error})"
            raise UsageError(what, where=wheres[image]) from error
        out[image].add((x, y, x + width, y + height), label, wheres[image])
    if crowds:
        log.warning("%s: %d crowd annotations are left out", path, crowds)
    return out


# Boxes from YOLO text: lines ``class x y width height``, relative, x and y of the centre.
