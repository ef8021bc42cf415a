"""Other places: falls in three homes, cameras over streets and halls, and pictures of anything.

``actions_video.tar`` and ``images_det.tar``; only the first has labels. Of the others it is known
where nobody is, and that those who are there neither fall nor lie: their targets are shares.
"""

from __future__ import annotations

import csv
import io
import json
import math
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import UsageError
from costream.labels.recording import UNSCORED
from costream.sources.media.picture import fit
from weights.recipes.action.data import distort
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.rendering.scenes import LabelledClip, clips_before
from weights.recipes.common import read_member

Size = tuple[int, int]  # width, height
SOMEBODY = (0.5, 0.3, 0.0, 0.2, 0.0, 0.0, 0.0)  # of LABELS: on one's feet or seated, if seen at all
ON_FOOT = (0.4, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0)  # passers-by, in view most of the time
NOBODY = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_STATES = {"walk": "walk", "stand": "walk", "sit": "sit", "fall": "fall", "lie": "lie"}
_STREETS = {"pets_square": ON_FOOT, "pets_carpark": SOMEBODY}  # the others serve validation
_BACKDROPS = ("ade20k", "street_ped", "cctv", "coco_mini", "coco_caption")
_FILM_STEPS = 48  # of held-out films
_SURE, _UNSURE = 0.35, 0.2  # scores of the teacher
_LARGE = 0.004  # share of a picture; smaller persons cannot be seen at this size


@dataclass(frozen=True)
class Still:
    """A picture, and where persons are in it."""

    source: str
    pixels: npt.NDArray[np.uint8]  # [3, H, W]
    persons: npt.NDArray[np.float32]  # [H, W], 1 in their boxes
    target: tuple[float, ...]  # shares of LABELS
    things: tuple[tuple[int, int, int, int], ...]  # x, y, width, height of boxes of other objects


@dataclass(frozen=True)
class Places:
    """What there is of other places; all but the first four parts is held out."""

    before: list[LabelledClip]  # people rendered before pictures
    homes: list[LabelledClip]
    passers: list[LabelledClip]
    stills: list[Still]
    home: list[LabelledClip]  # of a third person
    elsewhere: dict[str, list[LabelledClip]]  # without labels, to choose thresholds on
    test: dict[str, list[LabelledClip]]  # the same, to say what the weights do


def read_places(
    packs: Path, size: Size, rate_hz: float, scenes: int, every: int, seed: int
) -> Places:
    """Read the packs and render this number of scenes before pictures.

    Only every ``every``-th picture and clip of passers-by is used. Raises UsageError if a pack is
    missing.
    """
    actions, pictures = packs / "actions_video.tar", packs / "images_det.tar"
    stills = read_stills(pictures, size, "train")[::every]
    empty = [s for s in stills if s.target == NOBODY and s.source in _BACKDROPS]
    order = np.random.default_rng(0).permutation(len(empty))[:scenes]
    films = Films(read_stills(pictures, size, "val")[::every], len(LABELS), _FILM_STEPS, size)
    held = films.clips(seed)
    passers = [
        [
            *read_passers(actions, size, rate_hz, part)[::every],
            *read_streets(pictures, size, rate_hz, part)[::every],
        ]
        for part in ("train", "val")
    ]
    return Places(
        clips_before([empty[k].pixels for k in order], seed, rate_hz, size),
        read_homes(actions, size, rate_hz, "train"),
        passers[0],
        stills,
        read_homes(actions, size, rate_hz, "val"),
        {
            "pictures without people": [c for c in held if c.labels[0] == 0],
            "pictures with people": [c for c in held if c.labels[0] != 0],
            "streets and halls": passers[1],
        },
        {c.name: [c] for c in read_samples(packs / "samples.tar", size, rate_hz)},
    )


def read_samples(pack: Path, size: Size, rate_hz: float) -> list[LabelledClip]:
    """Return the clips of samples.tar, which are for tests only."""
    with _open(pack) as archive:
        names = sorted(n for n in archive.getnames() if n.endswith(".mp4"))
        return [
            _soft(Path(n).stem, decode(read_member(archive, n), size, rate_hz), SOMEBODY)
            for n in names
        ]


def read_homes(pack: Path, size: Size, rate_hz: float, split: str) -> list[LabelledClip]:
    """Return the clips of falls and daily life (GMDCSA24) of the persons of a split."""
    with _open(pack) as archive:
        parts: dict[str, list[tuple[float, float, str]]] = {}
        for row in _table(archive, "actions_video/segments.csv"):
            if row["label"] in _STATES:
                about = (float(row["start_s"]), float(row["end_s"]), _STATES[row["label"]])
                parts.setdefault(row["file"], []).append(about)
        out = []
        for row in _table(archive, "actions_video/labels.csv"):
            if "gmdcsa24" in row["file"] and row["split"] == split:
                data = read_member(archive, f"actions_video/{row['file']}")
                frames = decode(data, size, rate_hz)
                labels = np.full(len(frames), UNSCORED, np.int64)
                # The later of two labels that overlap, which is the movement.
                for start_s, end_s, label in sorted(parts.get(row["file"], [])):
                    labels[round(start_s * rate_hz) : round(end_s * rate_hz)] = LABELS.index(label)
                name = Path(row["file"]).name
                out.append(LabelledClip(name, frames, labels, 0.2, overhead=False))
    return out


def read_passers(pack: Path, size: Size, rate_hz: float, split: str) -> list[LabelledClip]:
    """Return the clips of cameras over streets, shops and halls of a split, half of them fights."""
    with _open(pack) as archive:
        return [
            _soft(
                Path(row["file"]).name,
                decode(read_member(archive, f"actions_video/{row['file']}"), size, rate_hz),
                SOMEBODY if row["label"] == "fight" else ON_FOOT,
            )
            for row in _table(archive, "actions_video/labels.csv")
            if "fight_cctv" in row["file"] and row["split"] == split
        ]


def read_streets(pack: Path, size: Size, rate_hz: float, split: str) -> list[LabelledClip]:
    """Return the unlabelled clips of images_det.tar of a split."""
    with _open(pack) as archive:
        names = sorted(n for n in archive.getnames() if n.endswith(".mp4"))
        return [
            _soft(
                Path(n).stem,
                decode(read_member(archive, n), size, rate_hz),
                _STREETS.get(Path(n).stem, SOMEBODY),
            )
            for n in names
            if (Path(n).stem in _STREETS) == (split == "train")
        ]


def read_stills(pack: Path, size: Size, split: str) -> list[Still]:
    """Return the pictures of a split, which fill ``size`` and may be larger in one direction."""
    with _open(pack) as archive:
        lines = read_member(archive, "images_det/boxes.jsonl").decode().splitlines()
        rows = {row["file"]: row for row in map(json.loads, lines) if row["split"] == split}
        return [
            _still(row, read_member(archive, f"images_det/{file}"), size)
            for file, row in rows.items()
        ]


def _still(row: dict[str, Any], data: bytes, size: Size) -> Still:
    with av.open(io.BytesIO(data), "r") as container:
        frame = next(container.decode(video=0))
        scale = max(size[0] / frame.width, size[1] / frame.height)
        width, height = math.ceil(scale * frame.width), math.ceil(scale * frame.height)
        pixels = frame.reformat(width, height, "rgb24", interpolation="AREA").to_ndarray()
    persons = np.zeros((height, width), np.float32)
    scale = width / row["width"]
    boxes = [(int(k), [round(scale * v) for v in box], s) for k, *box, s in row["teacher"]]
    for kind, (x, y, w, h), score in boxes:
        if kind == 0 and score >= _SURE:
            persons[max(y, 0) : y + h, max(x, 0) : x + w] = 1
    seen = [w * h / persons.size for kind, (_, _, w, h), s in boxes if kind == 0 and s >= _UNSURE]
    things = tuple(
        (max(x, 0), max(y, 0), w, h)
        for kind, (x, y, w, h), score in boxes
        if kind != 0 and score >= _SURE and min(w, h) >= 8
        if not persons[max(y, 0) : y + h, max(x, 0) : x + w].any()
    )
    target = SOMEBODY if max(seen, default=0.0) >= _LARGE else NOBODY
    source = row["file"].split("/")[1]
    return Still(source, np.ascontiguousarray(pixels.transpose(2, 0, 1)), persons, target, things)


class Films:
    """Random sampler of films made of pictures, with the methods of ``Sampler``.

    The camera stands still, drifts or pans; things cut out of other pictures may move through.
    """

    def __init__(self, stills: Sequence[Still], classes: int, steps: int, size: Size) -> None:
        self._stills, self._classes, self._steps, self._size = stills, classes, steps, size
        self._with_things = [k for k, still in enumerate(stills) if still.things]
        empty = [still.target == NOBODY for still in stills]
        self._halves = [np.flatnonzero(empty), np.flatnonzero(np.logical_not(empty))]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return frames float32 [T, 3, H, W] and target probabilities [T, C]."""
        frames, _, target = self._film(rng, np.arange(self._steps))
        shown, _ = distort(frames, rng, overhead=False)
        return shown, target.expand(self._steps, -1)

    def moment(
        self, rng: np.random.Generator, lags: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames float32 [1 + lags, 3, H, W] of a moment and before it, target and mask."""
        frames, mask, target = self._film(rng, -np.array([0, *lags]))
        shown, placed = distort(frames, rng, False, mask)
        assert placed is not None
        return shown, target, placed

    def clips(self, seed: int) -> list[LabelledClip]:
        """Return a film of every picture, without distortion."""
        rng, out = np.random.default_rng(seed), []
        for k, still in enumerate(self._stills):
            frames, _, _ = self._film(rng, np.arange(self._steps), k)
            out.append(_soft(f"{still.source} {k}", frames.numpy(), still.target))
        return out

    def _film(
        self, rng: np.random.Generator, times: npt.NDArray[np.int64], k: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames uint8 [T, 3, H, W], the mask of persons in the first, the target [C]."""
        if k is None:
            half = self._halves[int(rng.random() < 0.4)]
            k = int(rng.choice(half if len(half) else self._halves[0]))
        still, (width, height) = self._stills[k], self._size
        spare = np.array(still.pixels.shape[1:]) - (height, width)
        at = rng.uniform(0, 1, 2) * spare
        shake = rng.random()
        path = np.zeros((len(times), 2))
        if shake < 0.25:  # a hand
            path = rng.normal(0, rng.uniform(0.3, 1.5), path.shape)
        elif shake < 0.5:  # a pan
            path = times[:, None] * rng.normal(0, 1.0, 2)
        places = np.clip(np.rint(at + path), 0, spare).astype(int)
        frames = np.stack(
            [still.pixels[:, y : y + height, x : x + width] for y, x in places.tolist()]
        )
        y, x = places[0].tolist()
        mask = still.persons[y : y + height, x : x + width].copy()
        for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.6 else 0):
            self._pass(rng, frames, mask, times)
        target = np.zeros(self._classes, np.float32)
        target[: len(still.target)] = still.target
        return torch.from_numpy(frames), torch.from_numpy(mask), torch.from_numpy(target)

    def _pass(
        self,
        rng: np.random.Generator,
        frames: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.float32],
        times: npt.NDArray[np.int64],
    ) -> None:
        """Let a thing of some picture move through the frames, in place."""
        if not self._with_things:
            return
        other = self._stills[int(rng.choice(self._with_things))]
        x, y, w, h = other.things[int(rng.integers(len(other.things)))]
        width, height = self._size
        part = torch.from_numpy(other.pixels[:, y : y + h, x : x + w].copy()).float()
        scale = math.exp(rng.uniform(-1.5, -0.4)) * width / max(part.shape[1:])
        size = [max(4, round(scale * v)) for v in part.shape[1:]]
        piece = torch.nn.functional.interpolate(part[None], size, mode="area")[0].numpy()
        rows, columns = (np.linspace(-1, 1, v) for v in size)
        edge = rng.uniform(2, 8)
        cover = np.clip(edge * (1 - np.hypot(*np.meshgrid(rows, columns, indexing="ij"))), 0, 1)
        speed = rng.normal(0, 1, 2) * (0.5, 2.0) * rng.choice([0.0, 1.0], p=[0.2, 0.8])
        begin = rng.uniform(-0.2, 1.0, 2) * (height, width) - speed * times[len(times) // 2]
        for k, (top, left) in enumerate(np.rint(begin + times[:, None] * speed).astype(int)):
            a, b = max(top, 0), max(left, 0)
            c, d = min(top + size[0], height), min(left + size[1], width)
            if a < c and b < d:
                inside = slice(a - top, c - top), slice(b - left, d - left)
                place, share = frames[k, :, a:c, b:d], cover[inside]
                place[:] = place + share * (piece[:, inside[0], inside[1]] - place)
                if k == 0:
                    mask[a:c, b:d] *= 1 - share.astype(np.float32)


def decode(data: bytes, size: Size, rate_hz: float) -> npt.NDArray[np.uint8]:
    """Return the frames of a video at a rate, fitted into ``size`` on black, uint8 [T, 3, H, W]."""
    width, height = size
    pictures, times_s = [], []
    with av.open(io.BytesIO(data), "r") as container:
        for frame in container.decode(video=0):
            w, h = fit((frame.width, frame.height), size)
            rgb = frame.reformat(w, h, "rgb24", interpolation="AREA").to_ndarray()
            out = np.zeros((3, height, width), np.uint8)
            top, left = (height - h) // 2, (width - w) // 2
            out[:, top : top + h, left : left + w] = rgb.transpose(2, 0, 1)
            pictures.append(out)
            times_s.append(frame.time or 0.0)
    ticks = np.arange(0, times_s[-1] + 1e-6, 1 / rate_hz)
    return np.stack([pictures[k] for k in np.searchsorted(times_s, ticks + 1e-6, "right") - 1])


def _soft(name: str, frames: npt.NDArray[np.uint8], target: tuple[float, ...]) -> LabelledClip:
    """Return a clip whose every frame has these shares of the labels."""
    labels = np.full(len(frames), 0 if target == NOBODY else UNSCORED, np.int64)
    return LabelledClip(name, frames, labels, 0.2, overhead=False, target=target)


def _open(pack: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(pack)
    except (OSError, tarfile.TarError) as error:
        raise UsageError(f"the pack cannot be read ({error})", where=pack) from error


def _table(archive: tarfile.TarFile, name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader(io.StringIO(read_member(archive, name).decode("utf-8")))
