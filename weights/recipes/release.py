"""Completion of the cards of shipped weights: ``python -m weights.recipes.release``.

Each model is run over the sample of its kind on one core of this machine. Its scores there,
which ``models verify`` repeats, and the cost of a step go into the card and into NAME.md; the
tensors stay unchanged, but those that two files have in common are stored once (SHARED). The
licences of all cards of a folder go into its LICENSES.md. Run it after a recipe, on an otherwise
idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from costream.core.errors import CostreamError, UsageError
from costream.core.processor import processor
from costream.core.records import OBJECT_DETECTION
from costream.evaluation.sample import TOLERANCE, digest, measure
from costream.labels.recording import BACKGROUND
from costream.models.catalogue import load_model
from costream.runtime.torch_setup import prepare_torch
from costream.training.card_text import Table, card_text, sequence_table
from costream.training.objects.detector_card import detection_table
from costream.weights_io.card import Card
from costream.weights_io.file import SUFFIX, read_card, read_weights, write_weights
from costream.weights_io.store import samples_folder, shipped_folder
from weights.recipes.action.loop import frame_table
from weights.recipes.audio.mn04 import seen_table
from weights.recipes.encoder import SEEN
from weights.recipes.encoder import seen_table as picture_table


@dataclass(frozen=True)
class ReleaseSample:
    """A sample recording, and a model's labels for the labels in it."""

    file: str  # its script is the JSON file of the same name
    called: Mapping[str, str | None] = field(default_factory=dict)  # None: no object
    others: str | None = None  # label of everything else in the script; None: unchanged
    end_s: float | None = None
    tolerance: float = TOLERANCE


_ROOM = ReleaseSample("room.mp4")
_MOVES = ReleaseSample("moves.csv")
_AUDIOSET = {
    "silence": "Silence",
    "dog bark": "Dog",
    "siren": "Siren",
    "baby cry": "Baby cry, infant cry",
    "car horn": "Vehicle horn, car horn, honking",
    "drilling": "Drill",
    "gun shot": "Gunshot, gunfire",
}
SAMPLES = {
    "cooadtr": _ROOM,
    "cooadtr-b2": _ROOM,
    "oadtr": _ROOM,
    "cotrans": ReleaseSample("band.ogg"),
    "cosounds": ReleaseSample("street.ogg"),
    "mn04": ReleaseSample("street.ogg", _AUDIOSET),
    "costgcn": _MOVES,
    "costgcn-2d": _MOVES,
    # One person alone does nothing to another.
    "costgcn-pairs": ReleaseSample("moves.csv", others=BACKGROUND),
    # A rule has no scores between: by rounding, a segment of it ends a second earlier or later.
    "falls": ReleaseSample(
        "room.mp4", {"fall": "fall", "lie": "lie"}, others=BACKGROUND, tolerance=0.1
    ),
    # A bed with a quilt is in the room.
    "encoder": ReleaseSample("room.mp4", {"background": "quilt"}, others="quilt", end_s=10.0),
    "nanodet": ReleaseSample("room.mp4", {"background": None}, others="person", end_s=10.0),
    # Every action in the room shows a person; computing all tokens of a frame takes long.
    "eventful-vitdet": ReleaseSample("room.mp4", {"background": None}, others="person", end_s=10.0),
}
# Weights whose frontend is that of others in the same folder, where its tensors are stored.
SHARED = {"cooadtr-b2": "cooadtr", "oadtr": "cooadtr"}


def complete(path: Path, folder: Path | None = None) -> Card:
    """Measure a weight file, rewrite it with the complete card, and write NAME.md next to it.

    ``folder`` holds the samples. Raises UsageError without a sample for a model of this
    name, and the errors of a run.
    """
    stored = read_weights(path)
    sample = SAMPLES.get(stored.card.name)
    if sample is None:
        raise UsageError(f"there is no sample for {stored.card.name}", where=path)
    media = (folder or samples_folder()) / sample.file
    truth = _truth(media.with_suffix(".json"), sample)
    measured = measure(load_model(str(path), device="cpu"), media, truth, sample.end_s)
    card = replace(
        stored.card,
        costs={
            "macs": measured.macs,
            "dense_macs": measured.dense_macs,
            "ms": round(measured.ms, 2),
            "machine": f"one core, {processor()}, PyTorch {torch.__version__.partition('+')[0]}",
        },
        sample={
            "file": sample.file,
            "sha256": digest(media),
            "end_s": sample.end_s,
            "truth": truth,
            "metrics": {name: round(value, 4) for name, value in measured.metrics.items()},
            "tolerance": sample.tolerance,
        },
    )
    other = path.with_name(f"{SHARED.get(card.name, card.name)}{SUFFIX}")
    shares = other if other != path and other.is_file() else None
    write_weights(path, card, stored.tensors, shares)
    path.with_suffix(".md").write_text(card_text(card, table_of(card)), encoding="utf-8")
    return card


_FREE = """\
# Licences of the weights

The code of costream and its samples are under the Apache License 2.0 (file LICENSE). The weight
files of the package may be used for anything, under these terms. Weights that are for research only
are in the package costream-research-weights. The cards say what was trained on what: `costream
models show NAME`.
"""
_RESEARCH = """\
# Licences of the research weights

These weight files are for research only: the data that each was trained on bind its use. This is
LicenseRef-costream-research-weights in the metadata of the package. The cards say what was trained
on what: `costream models show NAME`.
"""


def licences(cards: Sequence[Card]) -> str:
    """Return LICENSES.md of a folder: the terms of each weight file, as its card states them."""
    free = {card.licence_class for card in cards} == {"free"}
    parts = [f"## {card.name}{SUFFIX}\n\n{card.licence}\n" for card in cards]
    return "\n".join([_FREE if free else _RESEARCH, *parts])


def table_of(card: Card) -> Table:
    """Return the formatter of a card's metrics."""
    if card.task == OBJECT_DETECTION:
        return detection_table
    if "what a user sees" in card.metrics:
        return seen_table
    if SEEN in card.metrics:
        return picture_table
    sequences = (m for models in card.metrics.values() for m in models.values() if "sequences" in m)
    return sequence_table if any(sequences) else frame_table


def _truth(path: Path, sample: ReleaseSample) -> list[list[Any]]:
    try:
        segments = json.loads(path.read_text("utf-8"))["segments"]
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", where=path) from error
    called = {s["label"]: sample.others or s["label"] for s in segments} | dict(sample.called)
    return [[s["start_s"], s["end_s"], called[s["label"]]] for s in segments]


def main(argv: Sequence[str] | None = None) -> int:
    """Complete the cards of these files, or of all shipped ones; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m weights.recipes.release")
    parser.add_argument("weights", nargs="*", type=Path, help="weight files; default: all shipped")
    options = parser.parse_args(argv)
    prepare_torch()
    folders = [shipped_folder(), shipped_folder() / "research"]
    shipped = [path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}"))]
    try:
        for path in options.weights or [path for path in shipped if read_card(path).labels]:
            card = complete(path)
            print(path, card.costs, card.sample["metrics"])
    except CostreamError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    for folder in folders:
        text = licences([read_card(path) for path in shipped if path.parent == folder])
        (folder / "LICENSES.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
