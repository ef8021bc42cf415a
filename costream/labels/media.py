"""Search for the recordings that labels belong to, by name."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from costream.core.errors import SourceError, UsageError
from costream.core.spelling import composed, folded
from costream.labels.collector import abbreviate
from costream.sources.features.feature_arrays import has_arrays, split_video
from costream.sources.file import file_name
from costream.sources.media.container import open_container
from costream.sources.media.input_file import read_head
from costream.sources.media.sound_file import open_sound
from costream.sources.media.streams import video_stream
from costream.sources.media.timing import end_s
from costream.sources.skeletons.frame_files import frame_files
from costream.sources.uris import open_source, recordings_in, sniff

_STREAM = "_rgb"  # of two feature files, VIDEO_rgb.npy and VIDEO_flow.npy, the one to open


@dataclass(frozen=True)
class Medium:
    """A recording that was found."""

    source: str  # as on the command line
    place: PurePosixPath  # relative to the searched folder; for FILE#VIDEO with the video

    @property
    def stems(self) -> frozenset[str]:
        """Possible names without the suffix: the file's name, or the video in the file."""
        video = self.place.name.partition("#")[2]
        stem = video or self.place.stem
        # In ActivityNet, the label ID refers to the file v_ID.mp4.
        return frozenset({stem, stem.removesuffix(_STREAM), stem.removeprefix("v_")})

    @property
    def names(self) -> frozenset[str]:
        """All of its names, with the suffix and without."""
        return self.stems | {self.place.name}


class Media:
    """Recordings in a folder and below, or in one file."""

    def __init__(self, data: Path, unlabelled: Container[Path] = ()) -> None:
        """List the recordings except the absolute paths ``unlabelled``; UsageError without data."""
        if not data.exists() and split_video(str(data))[1] is None:
            raise UsageError("no such file or folder", where=data)
        self.data = data
        self.found: list[Medium] = []
        self.paths: set[Path] = set()  # absolute, of the files they are in
        self._by_name: dict[str, list[Medium]] = {}
        self._by_stem: dict[str, list[Medium]] = {}
        for path in _paths(data):
            if path.absolute() not in unlabelled:
                self.paths.add(path.absolute())
                folder = PurePosixPath(path.relative_to(data).parent.as_posix())
                for source in recordings_in(str(path)):
                    self._add(Medium(source, folder / file_name(source)))

    def _add(self, medium: Medium) -> None:
        self.found.append(medium)
        self._by_name.setdefault(folded(medium.place.name), []).append(medium)
        for stem in medium.stems:
            self._by_stem.setdefault(folded(stem), []).append(medium)

    def find(self, names: Sequence[str], near: PurePosixPath) -> Medium | None:
        """Return the recording that has one of these names; None if there is none.

        The first name that matches exactly one counts, with or without its suffix. Of several
        matches, the one whose path shares most trailing folders with the name is preferred, then
        the one in the folder ``near``. Raises UsageError if every match is ambiguous.
        """
        several: tuple[str, list[Medium]] | None = None
        for name in names:
            fitting = self._fitting(name, near)
            if len(fitting) == 1:
                return fitting[0]
            if fitting and several is None:
                several = name, fitting
        if several is None:
            return None
        shown = abbreviate([str(medium.place) for medium in several[1]])
        raise UsageError(
            f"{several[0]!r} is ambiguous: it matches {shown}",
            where=self.data,
            hint="rename them, or give the labels the same folder structure",
        )

    def _fitting(self, name: str, near: PurePosixPath) -> list[Medium]:
        path = PurePosixPath(composed(name.replace("\\", "/")))
        fitting = (
            self._by_name.get(folded(path.name))
            or self._by_stem.get(folded(path.name))
            or self._by_stem.get(folded(path.stem))
            or []
        )
        exact = {path.name, path.stem}
        fitting = [m for m in fitting if exact & {composed(n) for n in m.names}] or fitting
        most = max((_shared(m.place.parent, path.parent) for m in fitting), default=0)
        fitting = [m for m in fitting if _shared(m.place.parent, path.parent) == most]
        fitting = [m for m in fitting if m.place.parent == near] or fitting
        if len(fitting) > 1:  # a text file may have the name of a recording
            fitting = [m for m in fitting if is_recording(m.source)] or fitting
        return fitting

    def without(self, labelled: Container[str]) -> list[str]:
        """Return the names of unlabelled recordings with the suffix of a labelled one."""
        kinds = {medium.place.suffix for medium in self.found if medium.source in labelled}
        return [
            str(medium.place)
            for medium in self.found
            if medium.source not in labelled and medium.place.suffix in kinds
        ]


def _paths(data: Path) -> Iterator[Path]:
    """Yield files, and folders that are one recording, in order of names."""
    if not data.is_dir() or frame_files(str(data)) is not None:
        yield data
        return
    for path in sorted(data.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _paths(path)
        else:
            yield path


def _shared(one: PurePosixPath, other: PurePosixPath) -> int:
    """Return the number of trailing folders that two paths have in common."""
    count = 0
    for a, b in zip(reversed(one.parts), reversed(other.parts), strict=False):
        if folded(a) != folded(b):
            break
        count += 1
    return count


def is_recording(source: str) -> bool:
    """Return whether a file can be opened as media or skeletons, or looks like features."""
    try:
        kind = sniff(source)
        if kind == "skeleton":
            _skeleton_length_s(source)
        elif kind == "video":
            open_container(source).close()
    except (SourceError, UsageError):
        return False
    return True


def length_s(source: str) -> float | None:
    """Return the duration of a recording in seconds; None if unknown.

    It is unknown for arrays, whose rate depends on the model, and for files that cannot be opened:
    reading them reports why.
    """
    try:
        path = split_video(source)[0]
        if not os.path.isdir(path) and has_arrays(read_head(path, 4), path):
            return None
        if sniff(source) == "skeleton":
            return _skeleton_length_s(source)
        with open_container(source) as container:
            if any(stream.codec_context for stream in container.streams.video):
                return end_s(container, video_stream(container, source))
        sound = open_sound(source)
        sound.container.close()
        return sound.duration_s
    except (SourceError, UsageError):
        return None


def _skeleton_length_s(source: str) -> float | None:
    skeletons = open_source(source)
    try:
        return skeletons.open().duration_s
    finally:
        skeletons.close()
