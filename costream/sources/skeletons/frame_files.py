"""Folders with one file per frame, of OpenPose and similar programs or of YOLO."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from costream.core.errors import SourceError, display_name
from costream.sources.file import first_of
from costream.sources.numbering import beginning, numbered

_KEYPOINTS = re.compile(r"(.*?)(_rendered)?_keypoints\.json", re.IGNORECASE)
_HEAD_BYTES = 4096
_POSE = 5  # class and box before the joints of a line of YOLO
_FEWEST_NUMBERS = _POSE + 2 * 5


@dataclass(frozen=True)
class FrameFiles:
    """The files of a recording in the order of their numbers."""

    kind: str  # "openpose" or "yolo"
    names: tuple[str, ...]
    numbers: tuple[int, ...]


def frame_files(folder: str) -> FrameFiles | None:
    """Return the files of the recording in a folder; None if it is not one.

    Raises SourceError if the folder cannot be read or contains files of several videos.
    """
    try:
        names = sorted(os.listdir(folder))
        found = _openpose(folder, names) or _yolo(folder, names)
    except OSError as error:
        raise SourceError(
            f"cannot be read ({error.strerror})", where=display_name(folder)
        ) from error
    if found is None:
        return None
    kind, stems = found
    pairs = numbered(list(stems.values()))
    videos: dict[str, list[str]] = {}
    for name, (video, number) in zip(stems, pairs, strict=True):
        if number is not None:
            videos.setdefault(video, []).append(name)
    if not videos:
        return None
    if len(videos) > 1:
        raise _several(folder, videos)
    numbers = {name: number for name, (_, number) in zip(stems, pairs, strict=True)}
    order = sorted(next(iter(videos.values())), key=lambda name: numbers[name] or 0)
    return FrameFiles(kind, tuple(order), tuple(numbers[name] or 0 for name in order))


def is_frame_folder(folder: str) -> bool:
    """Return whether a folder is one input: a file of keypoints for each frame, of a video or more.

    A folder that cannot be read is not.
    """
    try:
        return frame_files(folder) is not None
    except SourceError:
        return os.access(folder, os.R_OK)


def folder_of_frame(path: str) -> str | None:
    """Return the folder of a recording of which this file is one frame; None for other files."""
    folder = os.path.dirname(path) or "."
    try:
        if not path.lower().endswith((".json", ".txt")) or not _is_frame(_head(path)):
            return None
        files = frame_files(folder)
    except (OSError, SourceError):
        return None
    return folder if files is not None and os.path.basename(path) in files.names else None


def _is_frame(head: str) -> bool:
    return '"people"' in head or is_yolo_pose(head.lstrip().split("\n")[0])


def is_yolo_pose(line: str) -> bool:
    """Return whether a line has a class, a box and joints, as YOLO writes them."""
    try:
        numbers = list(map(float, line.split()))
    except ValueError:
        return False
    return (
        len(numbers) >= _FEWEST_NUMBERS
        and numbers[0].is_integer()
        and all(0 <= n <= 1 for n in numbers[1:_POSE])
    )


def _openpose(folder: str, names: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    """Return kind and files of a recording; the files by name, with their names without suffix."""
    stems = {name: match[1] for name in names if (match := _KEYPOINTS.fullmatch(name))}
    if not stems:  # names of Pose2Sim and RTMLib: NAME_000000.json
        plain = [name for name in names if re.search(r"\d.*\.json$", name, re.IGNORECASE)]
        if plain and '"people"' in _head(os.path.join(folder, plain[0])):
            stems = {name: name[: -len(".json")] for name in plain}
    return ("openpose", stems) if stems else None


def _yolo(folder: str, names: Sequence[str]) -> tuple[str, dict[str, str]] | None:
    texts = [name for name in names if re.search(r"\d\.txt$", name, re.IGNORECASE)]
    heads = (_head(os.path.join(folder, name)) for name in texts)
    first = next(filter(str.strip, heads), "")
    if not is_yolo_pose(first.split("\n")[0]):
        return None
    return "yolo", {name: name[: -len(".txt")] for name in texts}


def _head(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES).decode("utf-8-sig", "replace")


def _several(folder: str, videos: dict[str, list[str]]) -> SourceError:
    """Return the error for a folder with several videos; its hint moves one into a folder."""
    names = [video.strip("_-. ") or "unnamed" for video in videos]
    first, files = next(iter(videos.items()))
    begin = beginning(files).rstrip("0123456789")
    hint = "use a separate folder for each video"
    others = [name for video, group in videos.items() if video != first for name in group]
    if begin and not any(name.startswith(begin) for name in others):
        hint += f": cd {display_name(folder)}; mkdir {names[0]}; mv {begin}* {names[0]}"
    return SourceError(
        f"it contains the keypoints of {len(videos)} videos ({first_of(names, 2)})",
        where=display_name(folder),
        hint=hint,
    )
