"""All that a training of the detector needs of the packs, in one file that can be sent elsewhere.

Pictures stay encoded in it. ``python -m weights.recipes.objects.train`` writes it first; learning
from it (learn.py) needs neither PyAV nor ONNX Runtime.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from costream.evaluation.metrics.detection import Truth
from costream.training.objects.image_augment import Cutout

CUTOUT = 96  # side of cut-outs; their aspect is stored separately
_THREADS = 8  # that decode
_QUALITY = 90  # of frames of clips


@dataclass(frozen=True)
class Scene:
    """An encoded picture with boxes that are more or less certain, and how it is used."""

    data: bytes
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n]
    scores: Tensor  # [n], 1: put down by people
    share: float = 0.0  # sampling probability, not normalised
    steady: bool = False  # of a camera whose frames are always seen completely


@dataclass(frozen=True)
class Bank:
    """Scenes to learn from and to be scored on, cut-outs, and the teacher.

    ``cutouts`` uint8 [C, 4, CUTOUT, CUTOUT], the mask last, 0 or 255; ``wide`` [C]: width over
    height; ``kinds`` int64 [C] their labels; ``chances`` [C] their sampling probabilities.
    ``teacher``: the state of a ``TeacherMaps``. ``classes`` int64 [K, m]: the teacher's classes of
    each label, -1 for none.
    """

    scenes: list[Scene]
    judged: list[Scene]
    cutouts: Tensor
    wide: Tensor
    kinds: Tensor
    chances: Tensor
    classes: Tensor
    teacher: dict[str, Tensor]

    def groups(self) -> list[list[int]]:
        """Return the teacher's classes of each label."""
        return [[k for k in row if k >= 0] for row in self.classes.tolist()]

    def save(self, path: Path) -> None:
        """Write it as safetensors."""
        tensors = {
            "cutouts": self.cutouts,
            "wide": self.wide,
            "kinds": self.kinds,
            "chances": self.chances,
            "classes": self.classes,
        }
        tensors |= {f"teacher.{k}": v for k, v in self.teacher.items()}
        for name, scenes in (("scenes", self.scenes), ("judged", self.judged)):
            tensors |= {f"{name}.{k}": v for k, v in _packed(scenes).items()}
        part = path.with_suffix(".part")
        save_file({k: v.contiguous() for k, v in tensors.items()}, part)
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Bank:
        """Return what ``save`` has written."""
        every = load_file(path)

        def under(name: str) -> dict[str, Tensor]:
            return {k.removeprefix(name): v for k, v in every.items() if k.startswith(name)}

        scenes, judged = (_unpacked(under(name)) for name in ("scenes.", "judged."))
        names = ("cutouts", "wide", "kinds", "chances", "classes")
        rest = {name: every[name] for name in names}
        return cls(scenes, judged, **rest, teacher=under("teacher."))


def encode(pixels: Tensor, lossless: bool = False) -> bytes:
    """Return a picture, uint8 [3, H, W], as WebP."""
    file = io.BytesIO()
    picture = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    picture.save(file, "webp", quality=_QUALITY, lossless=lossless, method=2)
    return file.getvalue()


def decode(scenes: Sequence[Scene]) -> list[Tensor]:
    """Return the pictures of scenes, uint8 [H, W, 3]."""

    def one(scene: Scene) -> Tensor:
        with Image.open(io.BytesIO(scene.data)) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB")))

    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(one, scenes))


def truth_of(scene: Scene) -> Truth:
    """Return the boxes of a scene that it is scored by."""
    return Truth(scene.boxes.numpy(), scene.labels.numpy())


def cutout_tensors(by_clip: Sequence[Sequence[Cutout]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return cut-outs as a bank has them; all clips are equally likely."""
    layers, wide, kinds, chances = [], [], [], []
    for own in by_clip:
        for cutout in own:
            whole = torch.cat([cutout.pixels.float(), cutout.mask[None] * 255])
            fitted = F.interpolate(whole[None], (CUTOUT, CUTOUT), mode="bilinear", antialias=True)
            layers.append(fitted[0].round().clamp(0, 255).byte())
            wide.append(cutout.mask.shape[1] / cutout.mask.shape[0])
            kinds.append(cutout.label)
            chances.append(1 / len(own))
    stacked = torch.stack(layers) if layers else torch.zeros(0, 4, CUTOUT, CUTOUT).byte()
    return stacked, torch.tensor(wide), torch.tensor(kinds).long(), torch.tensor(chances)


def _packed(scenes: Sequence[Scene]) -> dict[str, Tensor]:
    data = b"".join(s.data for s in scenes)
    return {
        "data": torch.from_numpy(np.frombuffer(data, np.uint8).copy()),
        "bytes": torch.tensor([len(s.data) for s in scenes]),
        "counts": torch.tensor([len(s.labels) for s in scenes]),
        "boxes": torch.cat([s.boxes for s in scenes]),
        "labels": torch.cat([s.labels for s in scenes]),
        "scores": torch.cat([s.scores for s in scenes]),
        "share": torch.tensor([s.share for s in scenes], dtype=torch.float64),
        "steady": torch.tensor([s.steady for s in scenes]),
    }


def _unpacked(tensors: dict[str, Tensor]) -> list[Scene]:
    data, at = tensors["data"].numpy().tobytes(), 0
    counts = tensors["counts"].tolist()
    rows = zip(
        tensors["bytes"].tolist(),
        *(torch.split(tensors[k], counts) for k in ("boxes", "labels", "scores")),
        tensors["share"].tolist(),
        tensors["steady"].tolist(),
        strict=True,
    )
    scenes = []
    for length, *rest in rows:
        scenes.append(Scene(data[at : at + length], *rest))
        at += length
    return scenes
