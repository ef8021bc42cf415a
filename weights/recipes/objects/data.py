"""Reader of the object-detection packs: 192 images of COCO, and clips of samples.tar."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import UsageError
from costream.sources.media.picture import fit

LABELS = ("person", "vehicle", "bicycle", "bottle")
COCO_TO_LABEL = {  # label of each name of COCO, as spelt in the packs
    "person": "person",
    "bicycle": "bicycle",
    "car": "vehicle",
    "bus": "vehicle",
    "truck": "vehicle",
    "motorbike": "vehicle",
    "bottle": "bottle",
}
BOX = (512, 512)  # size of clips for training
SplitName = Literal["train", "validation", "test"]
_VALIDATION = 16  # one in 16 images of COCO's training set
_PARTS: dict[SplitName, tuple[float, float]] = {
    "train": (0.0, 0.7),
    "validation": (0.7, 0.8),
    "test": (0.8, 1.0),
}


@dataclass(frozen=True)
class LabelledImage:
    """An image and its labelled objects."""

    pixels: Tensor  # uint8 [3, H, W], red, green, blue
    boxes: Tensor  # [n, 4], pixels
    labels: Tensor  # int64 [n], into LABELS
    steady: bool = False  # of a camera whose frames are always seen whole


def read_names(packs: Path) -> list[str]:
    """Return the names of the 80 classes of COCO."""
    with _open(packs, "coco256") as archive:
        return _bytes(archive, "coco256/classes.txt").decode().split("\n")[:80]


def read_images(packs: Path, part: SplitName) -> list[LabelledImage]:
    """Return the images of COCO with the boxes of ``LABELS``.

    "test" is the validation set; one in 16 of the training set is for validation. Raises
    UsageError if the pack is missing.
    """
    folder = "val2017" if part == "test" else "train2017"
    names = read_names(packs)
    with _open(packs, "coco256") as archive:
        files = sorted(n for n in archive.getnames() if f"images/{folder}/" in n)
        if part != "test":
            own = part == "validation"
            files = [f for k, f in enumerate(files) if (k % _VALIDATION == 0) == own]
        return [_image(archive, file, names) for file in files if file.endswith(".jpg")]


def read_clip(
    packs: Path,
    name: str,
    every: int = 1,
    part: SplitName | None = None,
    box: tuple[int, int] = BOX,
) -> list[Tensor]:
    """Return every ``every``-th frame, uint8 [3, h, w], of a samples.tar clip, scaled into a box.

    ``part``: the first 70 %, the next 10 % or the last 20 % of its frames; None: all.
    """
    with _open(packs, "samples") as archive:
        data = _bytes(archive, f"samples/video/{name}.mp4")
    frames = list(_decode(data, box))
    low, high = _PARTS[part] if part else (0.0, 1.0)
    return frames[int(low * len(frames)) : int(high * len(frames)) : every]


def _decode(data: bytes, box: tuple[int, int]) -> Iterator[Tensor]:
    with av.open(io.BytesIO(data)) as container:
        for frame in container.decode(video=0):
            width, height = fit((frame.width, frame.height), box)
            yield _channels_first(frame.reformat(width, height, "rgb24").to_ndarray())


def _image(archive: tarfile.TarFile, file: str, names: list[str]) -> LabelledImage:
    with av.open(io.BytesIO(_bytes(archive, file))) as container:
        frame = next(container.decode(video=0))
        pixels = _channels_first(frame.to_ndarray(format="rgb24"))
    text = _bytes(archive, file.replace("images", "labels").replace(".jpg", ".txt")).decode()
    boxes, labels = [], []
    for line in text.splitlines():
        number, *numbers = line.split()
        meaning = COCO_TO_LABEL.get(names[int(number)])
        if meaning is not None:
            x, y, w, h = map(float, numbers)
            boxes.append([x - w / 2, y - h / 2, x + w / 2, y + h / 2])
            labels.append(LABELS.index(meaning))
    height, width = pixels.shape[1:]
    scale = torch.tensor([width, height, width, height])
    return LabelledImage(
        pixels, torch.tensor(boxes).view(-1, 4) * scale, torch.tensor(labels).long()
    )


def _channels_first(rgb: npt.NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1)))


def _open(packs: Path, name: str) -> tarfile.TarFile:
    path = packs / f"{name}.tar"
    if not path.is_file():
        raise UsageError(
            "training images not found",
            where=path,
            hint=f"give the folder of {path.name} with --packs",
        )
    return tarfile.open(path)


def _bytes(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise UsageError(f"the pack has no file {name}")
    return file.read()
