"""Joints of the persons in films: ``python -m weights.recipes.skeleton.tracks``.

Runs the detector and the pose estimator of costream over the films of packs, as ``detect`` does: at
the steps of the models, in frames fitted into the same box. It writes one OUTPUT/PACK/NAME.npz for
each film; those that are there already are left as they are, so that an interrupted run continues.
It writes no weights: ``films`` reads what it writes.
"""

from __future__ import annotations

import logging
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from costream.core.clock import Tick, resample
from costream.core.errors import UsageError
from costream.core.records import VideoFrame
from costream.models.pose.tracker import BOX, PoseTracker
from costream.runtime.joints import MOST
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from weights.recipes.common import carry_out, parser
from weights.recipes.skeleton.sets import RATE_HZ

log = logging.getLogger("costream")
PACKS = ("action_clips", "actions_video", "images_det", "samples")
GAP_S = 1.0  # as in the cards
CCTV_EVERY = 3  # clips of the fight films, which are cut from few films and are much alike
_SUFFIXES = (".mp4", ".avi", ".mkv", ".mov", ".webm")


@dataclass(frozen=True)
class Track:
    """Joints of one person in a film, as BlazePose's 33.

    ``steps``: int [N], the numbers of the steps at which they were found; ``times_s``: [T] of all
    steps of the film; ``places`` [N, 33, 2]: 0 to 1 in the picture, y down; ``scores`` [N, 33];
    ``space`` [N, 33, 3]: metres around the hips, y up; ``aspect``: width to height.
    """

    number: int
    steps: npt.NDArray[np.int64]
    times_s: npt.NDArray[np.float64]
    places: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    space: npt.NDArray[np.float32]
    aspect: float


def is_used(name: str) -> bool:
    """Return whether a file of a pack is a film whose persons are looked for."""
    if not name.lower().endswith(_SUFFIXES):
        return False
    number = re.search(r"fight_cctv/\D*(\d+)\.", name)
    return number is None or int(number[1]) % CCTV_EVERY == 0


def write_tracks(film: Path, path: Path) -> None:
    """Find the persons in a film and write their joints to ``path``."""
    tracker, size = PoseTracker(MOST), (1, 1)
    times: list[float] = []
    rows: list[tuple[int, int, Any, Any, Any]] = []
    for time_s, frame in _frames(film):
        found = tracker.find(frame)
        size = frame.rgb.shape[1], frame.rgb.shape[0]
        assert found.places is not None
        assert found.persons is not None
        for slot in np.flatnonzero(found.scores.any(1)):
            number = found.persons[slot]
            body = found.places[slot], found.scores[slot], found.joints[slot]
            rows.append((len(times), number, *body))
        times.append(time_s)
    columns = zip(*rows, strict=True) if rows else [()] * 5
    frames, numbers, places, scores, space = [np.array(column) for column in columns]
    arrays: dict[str, Any] = {
        "time_s": np.array(times),
        "size": np.array(size),
        "frame": frames.astype(np.int32),
        "number": numbers.astype(np.int32),
        "places": places.reshape(-1, 33, 2).astype(np.float32),
        "scores": scores.reshape(-1, 33).astype(np.float16),
        "space": space.reshape(-1, 33, 3).astype(np.float16),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **arrays)
    partial.replace(path)


def read_tracks(path: Path) -> list[Track]:
    """Return the persons in a film, those who were found most often first."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files}
    width, height = arrays["size"].tolist()
    out = []
    for number in np.unique(arrays["number"]):
        mine = arrays["number"] == number
        places, scores, space = (
            arrays[key][mine].astype(np.float32) for key in ("places", "scores", "space")
        )
        frames = arrays["frame"][mine].astype(np.int64)
        about = (int(number), frames, arrays["time_s"])
        out.append(Track(*about, places, scores, space, width / height))
    return sorted(out, key=lambda track: -len(track.steps))


def _frames(film: Path) -> Iterator[tuple[float, VideoFrame]]:
    """Yield the times and frames of a film that ``detect`` shows a model of ``RATE_HZ``."""
    options = SourceOptions(box=BOX, sampled_hz=RATE_HZ)
    with closing(open_source(str(film), options)) as source:
        source.open()
        for tick in resample(source.items(), RATE_HZ, GAP_S):
            if isinstance(tick, Tick) and isinstance(tick.item, VideoFrame):
                yield tick.time_s, tick.item


def make(packs: Path, output: Path, names: Sequence[str] = PACKS) -> list[Path]:
    """Write the joints of all films of packs; return the folders. UsageError if one is missing."""
    for name in names:
        archive = packs / f"{name}.tar"
        if not archive.is_file():
            raise UsageError("the films are missing", where=archive)
        with tarfile.open(archive) as tar:
            films = sorted((m for m in tar.getmembers() if is_used(m.name)), key=lambda m: m.name)
            for k, member in enumerate(films):
                path = output / name / f"{Path(member.name).with_suffix('').as_posix()}.npz"
                if path.is_file():
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    tar.extract(member, folder, filter="data")
                    write_tracks(Path(folder) / member.name, path)
                log.info("%s: %d of %d, %s", name, k + 1, len(films), path.stem)
    return [output / name for name in names]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("skeleton", "folder of the .tar packs")
    known.prog = "python -m weights.recipes.skeleton.tracks"
    known.add_argument("--only", action="append", choices=PACKS, help="a pack; default: all")
    options = known.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    names = options.only or PACKS
    return carry_out(lambda: make(options.packs, options.output, names), options.threads)


if __name__ == "__main__":
    sys.exit(main())
