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

from costream.core.errors import UsageError
from costream.labels.recording import UNSCORED
from costream.sources.media.lazy_image import fit
from weights.recipes.action.data import distort
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.rendering.scenes import LabelledClip, clips_before
from weights.recipes.common import read_member

Size = tuple[int, int]  # width, height
Box = tuple[int, int, int, int]  # x, y, width, height
SOMEBODY = (0.5, 0.3, 0.0, 0.2, 0.0, 0.0, 0.0)  # of LABELS: on one's feet or seated, if seen at all
ON_FOOT = (0.4, 0.6, 0.0, 0.0, 0.0, 0.0, 0.0)  # passers-by, in view most of the time
NOBODY = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
_STATES = {"walk": "walk", "stand": "walk", "sit": "sit", "fall": "fall", "lie": "lie"}
# For training; the others serve validation.
_STREETS = {"pets_square": ON_FOOT, "pets_carpark": SOMEBODY, "traffic_top": NOBODY}
_BACKDROPS = ("ade20k", "street_ped", "cctv", "coco_mini", "coco_caption")
_FILM_STEPS = 48  # of held-out films
_COMES = 0.25  # share of the films of pictures without people in which a person is put
_PLAIN = 0.35  # share of the films without people that show a surface only
_SURFACES = 80  # of held-out films
_SURE, _UNSURE = 0.35, 0.2  # scores of the teacher
_LARGE = 0.004  # share of a picture; smaller persons cannot be seen at this size


@dataclass(frozen=True)
class Still:
    """A picture, and where persons are in it."""

    source: str
    pixels: npt.NDArray[np.uint8]  # [3, H, W]
    persons: npt.NDArray[np.float32]  # [H, W], 1 in their boxes
    target: tuple[float, ...]  # shares of LABELS
    things: tuple[Box, ...]  # of other objects
    people: tuple[Box, ...] = ()  # of persons to be cut out


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
            "things before surfaces": films.surfaces(seed + 1, -(-_SURFACES // every)),
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
    """Return the unlabelled clips of images_det.tar of a split; cars also from nearer."""
    clips = []
    with _open(pack) as archive:
        for name in sorted(n for n in archive.getnames() if n.endswith(".mp4")):
            stem = Path(name).stem
            if (stem in _STREETS) == (split == "train"):
                data, target = read_member(archive, name), _STREETS.get(stem, SOMEBODY)
                clips.append(_soft(stem, decode(data, size, rate_hz), target))
                if target == NOBODY:
                    large = decode(data, (2 * size[0], 2 * size[1]), rate_hz)
                    clips += [_soft(stem, part, target) for part in _quarters(large)]
    return clips


def _quarters(frames: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.uint8]]:
    return [
        np.ascontiguousarray(part)
        for half in np.split(frames, 2, axis=2)
        for part in np.split(half, 2, axis=3)
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
    clear = [
        (kind, (max(x, 0), max(y, 0), w, h))
        for kind, (x, y, w, h), score in boxes
        if score >= _SURE and min(w, h) >= 8
    ]
    people = tuple(box for kind, box in clear if kind == 0)
    things = tuple(
        (x, y, w, h)
        for kind, (x, y, w, h) in clear
        if kind != 0 and not persons[y : y + h, x : x + w].any()
    )
    target = SOMEBODY if max(seen, default=0.0) >= _LARGE else NOBODY
    source = row["file"].split("/")[1]
    return Still(
        source, np.ascontiguousarray(pixels.transpose(2, 0, 1)), persons, target, things, people
    )


class Films:
    """Random sampler of films made of pictures, with the methods of ``Sampler``.

    The camera stands still, drifts or pans; things cut out of other pictures stand there, are put
    down, or move through. Part of the films show no more than a wall, a floor or a table top before
    the things: a piece of a picture without people, magnified. In part of the films without people
    a person cut out likewise is there, so that edges do not distinguish things from people.
    """

    def __init__(self, stills: Sequence[Still], classes: int, steps: int, size: Size) -> None:
        self._stills, self._classes, self._steps, self._size = stills, classes, steps, size
        self._with_things = [k for k, still in enumerate(stills) if still.things]
        self._with_people = [k for k, still in enumerate(stills) if still.people]
        empty = [still.target == NOBODY for still in stills]
        self._halves = [np.flatnonzero(empty), np.flatnonzero(np.logical_not(empty))]

    def draw(self, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return frames float32 [T, 3, H, W] and target probabilities [T, C]."""
        frames, _, target = self._film(self._any(rng), rng, np.arange(self._steps), comes=_COMES)
        shown, _ = distort(frames, rng, overhead=False)
        return shown, target.expand(self._steps, -1)

    def moment(
        self, rng: np.random.Generator, lags: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames float32 [1 + lags, 3, H, W] of a moment and before it, target and mask."""
        newest = int(rng.integers(self._steps))
        times = np.maximum(newest - np.array([0, *lags]), 0)
        frames, mask, target = self._film(self._any(rng), rng, times, comes=_COMES)
        shown, placed = distort(frames, rng, False, mask)
        assert placed is not None
        return shown, target, placed

    def clips(self, seed: int) -> list[LabelledClip]:
        """Return a film of every picture, without distortion."""
        rng, out = np.random.default_rng(seed), []
        for k, still in enumerate(self._stills):
            frames, _, _ = self._film(still, rng, np.arange(self._steps))
            out.append(_soft(f"{still.source} {k}", frames.numpy(), still.target))
        return out

    def surfaces(self, seed: int, count: int) -> list[LabelledClip]:
        """Return films of things before plain surfaces, without distortion."""
        rng, out = np.random.default_rng(seed), []
        for k in range(count):
            still = surface(self._stills[int(rng.choice(self._halves[0]))], rng, self._size)
            frames, _, _ = self._film(still, rng, np.arange(self._steps), things=1)
            out.append(_soft(f"surface {k}", frames.numpy(), still.target))
        return out

    def _any(self, rng: np.random.Generator) -> Still:
        half = self._halves[int(rng.random() < 0.4)]
        still = self._stills[int(rng.choice(half if len(half) else self._halves[0]))]
        plain = still.target == NOBODY and rng.random() < _PLAIN
        return surface(still, rng, self._size) if plain else still

    def _film(
        self,
        still: Still,
        rng: np.random.Generator,
        times: npt.NDArray[np.int64],
        things: int = 0,
        comes: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames uint8 [T, 3, H, W], the mask of persons in the first, the target [C].

        ``times``: steps since the start of the film; ``things``: how many there are at least;
        ``comes``: how often a person is put where nobody is.
        """
        width, height = self._size
        spare = np.array(still.pixels.shape[1:]) - (height, width)
        at = rng.uniform(0, 1, 2) * spare
        shake = rng.random()
        path = np.zeros((len(times), 2))
        if shake < 0.25:  # a hand
            path = rng.normal(0, rng.uniform(0.3, 1.5), path.shape)
        elif shake < 0.5:  # a pan
            path = (times[:, None] - times.mean()) * rng.normal(0, 1.0, 2)
        places = np.clip(np.rint(at + path), 0, spare).astype(int)
        frames = np.stack(
            [still.pixels[:, y : y + height, x : x + width] for y, x in places.tolist()]
        )
        y, x = places[0].tolist()
        mask = still.persons[y : y + height, x : x + width].copy()
        some = int(rng.integers(0, 4)) if rng.random() < 0.6 else 0
        for _ in range(max(some, things)):
            self._pass(rng, frames, mask, times)
        shares = still.target
        if shares == NOBODY and self._with_people and rng.random() < comes:
            self._pass(rng, frames, mask, times, person=True)
            shares = SOMEBODY
        target = np.zeros(self._classes, np.float32)
        target[: len(shares)] = shares
        return torch.from_numpy(frames), torch.from_numpy(mask), torch.from_numpy(target)

    def _pass(
        self,
        rng: np.random.Generator,
        frames: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.float32],
        times: npt.NDArray[np.int64],
        person: bool = False,
    ) -> None:
        """Let a thing or a person of some picture stand or move in the frames, in place."""
        of = self._with_people if person else self._with_things
        if not of:
            return
        other = self._stills[int(rng.choice(of))]
        boxes = other.people if person else other.things
        x, y, w, h = boxes[int(rng.integers(len(boxes)))]
        part = torch.from_numpy(other.pixels[:, y : y + h, x : x + w].copy()).float()
        scale = math.exp(rng.uniform(-1.5, -0.1)) * self._size[0] / max(part.shape[1:])
        size = [max(4, round(scale * v)) for v in part.shape[1:]]
        turned = [rng.choice([1, -1]), 1 if person else rng.choice([1, -1], p=[0.9, 0.1])]
        piece = _scaled(part[None], size)[0].numpy()
        piece = piece[:, :: turned[1], :: turned[0]]
        if not person and rng.random() < 0.5:  # as seen from above
            piece, size = np.rot90(piece, axes=(1, 2)), size[::-1]
        cover = _outline(rng, size)
        for k, (top, left) in enumerate(_course(rng, size, self._size, times, person).tolist()):
            a, b = max(top, 0), max(left, 0)
            c, d = min(top + size[0], self._size[1]), min(left + size[1], self._size[0])
            if a < c and b < d:
                inside = slice(a - top, c - top), slice(b - left, d - left)
                place, share = frames[k, :, a:c, b:d], cover[inside]
                place[:] = place + share * (piece[:, inside[0], inside[1]] - place)
                if k == 0:
                    mask[a:c, b:d] += (float(person) - mask[a:c, b:d]) * share.astype(np.float32)


def surface(still: Still, rng: np.random.Generator, size: Size) -> Still:
    """Return a picture of a small piece of one without people, magnified: a wall or a floor."""
    width, height = size
    share = math.exp(rng.uniform(-3.0, -0.7))
    rows, columns = (max(3, round(share * v)) for v in (height, width))
    top, left = (
        int(rng.integers(v - n + 1))
        for v, n in zip(still.pixels.shape[1:], (rows, columns), strict=True)
    )
    piece = torch.from_numpy(still.pixels[:, top : top + rows, left : left + columns].copy())
    grain = rng.normal(0, abs(rng.normal(0, 4)), (height, width))
    larger = _scaled(piece[None].float(), (height, width))[0].numpy()
    pixels = np.clip(larger + grain, 0, 255).astype(np.uint8)
    return Still(still.source, pixels, np.zeros((height, width), np.float32), NOBODY, ())


def _scaled(pictures: Tensor, size: Sequence[int]) -> Tensor:
    return torch.nn.functional.interpolate(pictures, tuple(size), mode="bilinear", antialias=True)


def _outline(rng: np.random.Generator, size: Sequence[int]) -> npt.NDArray[np.float64]:
    """Return how far a thing covers each pixel, [h, w]: from an ellipse to a rectangle."""
    rows, columns = (np.abs(np.linspace(-1, 1, v)) for v in size)
    power = math.exp(rng.uniform(0.7, 2.3))
    away = (rows[:, None] ** power + columns**power) ** (1 / power)
    return np.clip(math.exp(rng.uniform(0.7, 3.0)) * (1 - away), 0, 1)


def _course(
    rng: np.random.Generator,
    thing: Sequence[int],
    size: Size,
    times: npt.NDArray[np.int64],
    stays: bool,
) -> npt.NDArray[np.int64]:
    """Return the top left corner (y, x) of a thing [T, 2]: it stands, moves, or stops on its way.

    ``thing``: height and width; ``stays``: it is in view at some of the times.
    """
    box = np.array((size[1], size[0]))
    speed = rng.normal(0, 1, 2) * (0.5, 1.5) * math.exp(rng.uniform(-0.5, 1.5))
    if rng.random() < 0.2:
        speed = speed[::-1]  # towards the camera, or down
    at = rng.uniform(-0.3, 1.0, 2) * box
    met = int(rng.choice(times))
    if rng.random() < 0.3:
        speed = np.zeros(2)
    if stays or rng.random() < 0.4:  # stops for good, or stood before
        moving = np.minimum(times - met, 0) if rng.random() < 0.5 else np.maximum(times - met, 0)
        at = rng.uniform(0, 1, 2) * np.maximum(box - thing, 1)
    else:
        moving = times - met
    return np.rint(at + moving[:, None] * speed).astype(np.int64)  # type: ignore[no-any-return]


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
