"""The recordings that labels belong to, found by what the labels call them."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from costream.errors import UsageError
from costream.labels.intake import some
from costream.labels.probing import is_recording
from costream.sources.arrays import split_video
from costream.sources.features import file_name
from costream.sources.keypoints import keypoint_files
from costream.sources.registry import expand

# Files that may hold many recordings, and are opened to see.
_ARRAYS = (".npy", ".pickle", ".pkl", ".p")
_STREAM = "_rgb"  # of two files of features, VIDEO_rgb.npy and VIDEO_flow.npy, the one to open


@dataclass(frozen=True)
class Medium:
    """A recording."""

    source: str  # as on the command line
    place: PurePosixPath  # below the folder that is searched; of FILE#VIDEO with the video

    @property
    def stems(self) -> frozenset[str]:
        """What it may be called without its ending: its own name, and the video in a file."""
        video = self.place.name.partition("#")[2]
        stem = video or self.place.stem
        # ActivityNet calls the file v_ID.mp4 what its labels call ID.
        return frozenset({stem, stem.removesuffix(_STREAM), stem.removeprefix("v_")})


class Media:
    """The recordings in a folder and below, or those of one file."""

    def __init__(self, data: Path, passed_by: Container[Path] = ()) -> None:
        """``passed_by``: absolute files that are no recordings. UsageError without the data."""
        if not data.exists() and split_video(str(data))[1] is None:
            raise UsageError("there is no such data", where=data)
        self.data = data
        self.found: list[Medium] = []
        self.paths: set[Path] = set()  # absolute, of the files they are in
        self._by_name: dict[str, list[Medium]] = {}
        self._by_stem: dict[str, list[Medium]] = {}
        for path in _paths(data):
            if path.absolute() not in passed_by:
                self.paths.add(path.absolute())
                folder = PurePosixPath(path.relative_to(data).parent.as_posix())
                many = path.suffix.lower() in _ARRAYS
                for source in expand(str(path)) if many else [str(path)]:
                    self._add(Medium(source, folder / file_name(source)))

    def _add(self, medium: Medium) -> None:
        self.found.append(medium)
        self._by_name.setdefault(medium.place.name, []).append(medium)
        for stem in medium.stems:
            self._by_stem.setdefault(stem, []).append(medium)

    def find(self, names: Sequence[str], near: PurePosixPath) -> Medium | None:
        """Give the recording that has one of these names; None where there is none.

        The first name that fits a single one counts, with its ending or without. Of several that
        fit, the one whose path ends in most folders of the name's is taken, and then the one in
        the folder ``near``. UsageError where names fit, but none a single one.
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
        shown = some([str(medium.place) for medium in several[1]])
        raise UsageError(
            f"{several[0]!r} may be each of {shown}",
            where=self.data,
            hint="rename them, or mirror their folders in those of the labels",
        )

    def _fitting(self, name: str, near: PurePosixPath) -> list[Medium]:
        path = PurePosixPath(name.replace("\\", "/"))
        fitting = (
            self._by_name.get(path.name)
            or self._by_stem.get(path.name)
            or self._by_stem.get(path.stem)
            or []
        )
        most = max((_shared(m.place.parent, path.parent) for m in fitting), default=0)
        fitting = [m for m in fitting if _shared(m.place.parent, path.parent) == most]
        fitting = [m for m in fitting if m.place.parent == near] or fitting
        if len(fitting) > 1:  # a text beside a recording may be called like it
            fitting = [m for m in fitting if is_recording(m.source)] or fitting
        return fitting

    def without(self, labelled: Container[str]) -> list[str]:
        """Give the names of recordings without labels, of the kinds that have such elsewhere."""
        kinds = {medium.place.suffix for medium in self.found if medium.source in labelled}
        return [
            str(medium.place)
            for medium in self.found
            if medium.source not in labelled and medium.place.suffix in kinds
        ]


def _paths(data: Path) -> Iterator[Path]:
    """Yield files, and folders that are one recording, in order of their names."""
    if not data.is_dir() or keypoint_files(str(data)):
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
    """Give how many folders two paths end in alike."""
    count = 0
    for a, b in zip(reversed(one.parts), reversed(other.parts), strict=False):
        if a != b:
            break
        count += 1
    return count
