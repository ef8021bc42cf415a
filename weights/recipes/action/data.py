"""Reader of the fir_action video: 17 clips of a ceiling camera with an action for every frame.

The labels were made on another (thermal) stream and are off by up to a second, so classes are
merged to what they can support:

* ``stand`` never occurs and counts as walk. ``falled`` (on the floor after a fall) is labelled in
  some videos only and is ``falling`` in the others: both are fall. ``lying`` (the movement) and
  ``sleeping`` (the state) are lie.
* ``active`` (somebody does something, mostly out of view, nearly all in one video) and
  ``background`` between two actions (the person lies there in some videos) are left out of
  training and scoring. Background before the first action and after the last is the empty room.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

from costream.errors import UsageError
from weights.recipes.action.rendering.figure import LABELS
from weights.recipes.action.rendering.scenes import UNSCORED, LabelledClip

MERGED = {
    "background": "background",
    "walk": "walk",
    "stand": "walk",
    "sitdown": "sit down",
    "sit": "sit",
    "standup": "stand up",
    "falling": "fall",
    "falled": "fall",
    "lying": "lie",
    "sleeping": "lie",
    "active": None,
}

# Fixed before any training: both rooms (_01, _02) and every class in each part.
TEST = (
    "20200626_154556",
    "20200626_175151",
    "20200627_185209",
    "20200629_115049",
    "20200629_140431",
)
VALIDATION = ("20200627_190147", "20200628_145326", "20200629_115413")


def split_of(name: str) -> str:
    """Return the part of the named video: "test", "validation" or "train"."""
    if name.startswith(TEST):
        return "test"
    return "validation" if name.startswith(VALIDATION) else "train"


def read_pack(
    pack: Path, size: tuple[int, int], only: Sequence[str] | None = None
) -> Iterator[LabelledClip]:
    """Yield the videos of ``fir_action.tar``, each as one clip, scaled to ``size`` (w, h).

    ``only``: prefixes of the names wanted. The archive is unpacked to a temporary directory.
    Raises UsageError if it is not such an archive.
    """
    with tempfile.TemporaryDirectory(prefix="costream-") as folder:
        try:
            with tarfile.open(pack) as tar:
                tar.extractall(folder, filter="data")
            index = json.loads((Path(folder) / "fir_action" / "labels.json").read_text("utf-8"))
        except (OSError, ValueError, tarfile.TarError) as error:
            raise UsageError(f"not the fir_action pack ({error})", where=pack) from error
        for video in index["videos"]:
            name = video["video"]
            if only is None or name.startswith(tuple(only)):
                frames = _decode(Path(folder) / "fir_action" / name, size)
                labels = merge([index["classes"][k] for k in video["labels"]])
                steps = min(len(frames), len(labels))
                yield LabelledClip(name, frames[:steps], labels[:steps], blur_s=1.0)


def merge(names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the merged label of every frame, int64 [T]; see the module docstring."""
    labels = np.array(
        [UNSCORED if (to := MERGED[name]) is None else LABELS.index(to) for name in names]
    )
    acting = np.flatnonzero([name != "background" for name in names])
    if len(acting):
        between = slice(acting[0], acting[-1])
        labels[between][labels[between] == 0] = UNSCORED
    return labels


def _decode(path: Path, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    with av.open(str(path)) as container:
        pictures = [
            frame.reformat(*size, "rgb24", interpolation="BILINEAR").to_ndarray()
            for frame in container.decode(video=0)
        ]
    return np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
