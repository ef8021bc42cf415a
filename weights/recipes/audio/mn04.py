"""Recipe of ``mn04.safetensors``: the published weights, and thresholds for its timeline.

::

    python -m weights.recipes.audio.mn04 --packs PACKS -o OUTPUT

The weights are EfficientAT's mn04_as, unchanged, read from ``teachers_audio.tar`` (needs the
package onnx). Thresholds of labels are chosen on clips of the other packs that mn04 has not learnt
from, and what a user sees is counted on clips of other sources.
"""

from __future__ import annotations

import copy
import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.core.audioset import kinds_among
from costream.core.errors import UsageError
from costream.core.label_sets import AUDIOSET_527
from costream.core.records import AUDIO_TAGGING
from costream.evaluation.metrics.bootstrap import intervals
from costream.models.audio.efficientat import (
    PAPER,
    SAMPLE_RATE_HZ,
    EfficientAt,
    EfficientAtMel,
)
from costream.models.build import save_model
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ as PACK_RATE_HZ
from costream.weights_io.card import Card, Timeline
from weights.recipes.audio.adviser import ALIKE
from weights.recipes.audio.data import SoundClip, read_clips, sound_label
from weights.recipes.common import FREE, carry_out, parser, teacher_file

NETWORK: dict[str, Any] = {"num_classes": 527, "width": 0.4, "hop_frames": 50, "window_frames": 200}
FRONTEND: dict[str, Any] = {"hop_frames": 50}
_LEARN, _TEST = 24, 12  # clips of a label, to choose thresholds on and to count on
_LEVELS = (0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
_USUAL = 0.3
_PRECISION = 0.8  # of a label at its threshold
_FEWEST = 5  # clips that a threshold is chosen on
_SHARES = ("right", "wrong", "nothing")
_COUNTED = (*_SHARES, "labels")
Scores = npt.NDArray[np.float32]  # [clips, 527], of each clip the highest


def make(packs: Path, output: Path, cache: Path | None) -> Sequence[Path]:
    """Write the weights and their card; return the path."""
    network = published(packs / "teachers_audio.tar")
    clips = read_clips(packs, cache=cache)
    learnt = chosen((c for c in clips if c.part in ("train", "validation", "left out")), _LEARN)
    tested = chosen((c for c in clips if c.part == "test"), _TEST)
    thresholds = choose_thresholds(highest(network, learnt), learnt)
    timeline = Timeline(_USUAL, min_length_s=0.4, min_gap_s=1.0, thresholds=thresholds)
    scores = highest(network, tested)
    seen = {
        "with its thresholds": count_seen(scores, tested, timeline),
        "at 0.3 for all labels": count_seen(scores, tested, Timeline(_USUAL)),
    }
    rate_hz = 100 / network.hop_frames
    card = Card(
        name="mn04",
        task=AUDIO_TAGGING,
        architecture="efficientat",
        arguments=NETWORK,
        labels=AUDIOSET_527.names,
        rate_hz=rate_hz,
        delay_s=network.delay_steps / rate_hz,
        frontend="efficientat-mel",
        frontend_arguments=FRONTEND,
        timeline=timeline,
        metrics={"what a user sees": seen},
        paper=f"Schmid, Koutini and Widmer, ICASSP 2023, {PAPER}",
        **_ABOUT,
    )
    path = output / "mn04.safetensors"
    save_model(path, card, network, EfficientAtMel(**FRONTEND))
    return [path]


def published(pack: Path) -> EfficientAt:
    """Return mn04_as; its parameters have the precision in which they are stored."""
    try:
        from onnx import load, numpy_helper
    except ImportError as error:
        raise UsageError("the recipe reads an ONNX file", hint="pip install onnx") from error
    with teacher_file(pack, "mn04_as.onnx") as file:
        stored = {
            initial.name.removesuffix("_h"): torch.from_numpy(numpy_helper.to_array(initial).copy())
            for initial in load(str(file)).graph.initializer
        }
    with teacher_file(pack, "audioset_class_labels_indices.csv") as file:
        names = tuple(row["display_name"] for row in csv.DictReader(file.open(encoding="utf-8")))
    if names != AUDIOSET_527.names:
        raise UsageError("the labels are not those of AudioSet", where=pack)
    network = EfficientAt(**NETWORK).eval()
    for name, value in _named(network, stored).items():
        network.get_parameter(name).data = value
    return network


def _named(network: EfficientAt, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors by our names; layers are numbered in the order of computation."""
    named: dict[str, Tensor] = {}
    layers = ["stem"]
    for k, block in enumerate(network.blocks):
        parts = ("expand", "depthwise", "squeeze", "project")
        layers += [f"blocks.{k}.{part}" for part in parts if getattr(block, part) is not None]
    for number, layer in enumerate([*layers, "last"], 1):
        if layer.endswith("squeeze"):
            for ours, place in ((layer, 1), (layer.replace("squeeze", "excite"), 2)):
                named[f"{ours}.weight"] = stored[f"s{number}w{place}"][:, :, 0, 0]
                named[f"{ours}.bias"] = stored[f"s{number}b{place}"]
        else:
            # Kernels over bands and frames become such over frames and bands.
            named[f"{layer}.weight"] = stored[f"c{number}w"].transpose(2, 3).contiguous()
            named[f"{layer}.bias"] = stored[f"c{number}b"]
    for ours, theirs in (("hidden", "f1"), ("classifier", "f2")):
        named |= {f"{ours}.weight": stored[theirs], f"{ours}.bias": stored[f"{theirs}b"]}
    return named


def chosen(clips: Iterable[SoundClip], most: int) -> list[SoundClip]:
    """Return at most ``most`` clips of each label, at random but always the same."""
    by_label = defaultdict(list)
    for clip in clips:
        by_label[sound_label(clip) or clip.label].append(clip)
    rng = np.random.default_rng(0)
    return [group[k] for group in by_label.values() for k in rng.permutation(len(group))[:most]]


def highest(network: EfficientAt, clips: Sequence[SoundClip]) -> Scores:
    """Return the highest score of each label in each clip."""
    return np.stack([rows.max(0) for rows in step_scores(network, clips)])


@torch.no_grad()
def step_scores(network: EfficientAt, clips: Sequence[SoundClip]) -> Iterator[Scores]:
    """Yield the scores [T, 527] of the steps of each clip."""
    from soxr import resample  # librosa needs it

    exact, front = copy.deepcopy(network).float(), EfficientAtMel(**FRONTEND)
    for clip in clips:
        wave = torch.from_numpy(resample(clip.wave, PACK_RATE_HZ, SAMPLE_RATE_HZ)).float()
        blocks = torch.nn.functional.pad(wave, (0, -len(wave) % front.block))
        tokens = front(blocks.view(1, -1, front.block))
        logits = exact.forward_steps(tokens, exact.init_state()).logits[0]
        yield logits.sigmoid().numpy()


@cache
def right_and_wrong(label: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return which labels of AudioSet are right for a clip of this label, and which are wrong.

    Right is what is the same or a kind of it. What it is a kind of (Animal, of a dog) is neither.
    """
    names = [name.lower() for name in AUDIOSET_527.names]
    kinds = kinds_among(names)
    same = {name.lower() for name in ALIKE.get(label, ())}
    right = same.union(*(kinds.get(name, frozenset()) for name in same))
    above = {kind for kind, members in kinds.items() if members & right}
    return (
        np.array([name in right for name in names]),
        np.array([name not in right | above for name in names]),
    )


def choose_thresholds(scores: Scores, clips: Sequence[SoundClip]) -> dict[str, float]:
    """Return the thresholds of labels other than the usual one.

    Of each label the lowest from which on four of five clips that it is shown for are of it; the
    highest, 0.6, if none is; the usual one, where fewer than five clips say so.
    """
    judged = [right_and_wrong(sound_label(clip) or clip.label) for clip in clips]
    counted = np.array([right.any() for right, _ in judged])
    right, wrong = (np.stack(rows)[counted] for rows in zip(*judged, strict=True))
    found = {}
    for k, name in enumerate(AUDIOSET_527.names):
        level = _lowest(scores[counted, k], right[:, k], wrong[:, k])
        if level != _USUAL:
            found[name] = level
    return found


def _lowest(
    scores: npt.NDArray[np.float32], right: npt.NDArray[np.bool_], wrong: npt.NDArray[np.bool_]
) -> float:
    lowest = None
    for level, above in zip(reversed(_LEVELS), (_LEVELS[-1], *reversed(_LEVELS)), strict=False):
        shown = scores >= level
        good, bad = int((shown & right).sum()), int((shown & wrong).sum())
        if good + bad < _FEWEST:
            continue
        if good < _PRECISION * (good + bad):
            return max(_USUAL, above) if lowest is None else lowest
        lowest = level
    return _USUAL if lowest is None else lowest


def count_seen(scores: Scores, clips: Sequence[SoundClip], timeline: Timeline) -> dict[str, Any]:
    """Return the shares of clips with a right label, a wrong one, or none, and labels a clip.

    With their 95 % intervals over sources: recordings, speakers and songs.
    """
    levels = np.array([timeline.thresholds.get(n, timeline.threshold) for n in AUDIOSET_527.names])
    rows, groups = [], []
    for row, clip in zip(scores, clips, strict=True):
        right, wrong = right_and_wrong(sound_label(clip) or clip.label)
        if right.any():
            shown = row >= levels
            rows.append(
                [(shown & right).any(), (shown & wrong).any(), not shown.any(), shown.sum()]
            )
            groups.append(f"{clip.set} {clip.group}")
    counts, (sources, places) = np.array(rows, float), np.unique(groups, return_inverse=True)
    found = intervals(lambda drawn: np.average(counts, 0, drawn[places]).tolist(), len(sources))
    means = zip(_COUNTED, counts.mean(0), found, strict=True)
    seen: dict[str, Any] = {"clips": len(rows), "sources": len(sources)}
    for name, mean, interval in means:
        seen |= {name: round(float(mean), 4), f"{name}_95": interval}
    del seen["labels_95"]
    return seen


def seen_table(models: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return the lines of a table of what ``count_seen`` counted, by setting."""
    first = next(iter(models.values()))
    lines = [
        f"{first['clips']} clips of {first['sources']} sources in env_sound and sound2, at most"
        f" {_TEST} of a label; shares of clips, with 95 % intervals over sources.",
        "",
        "| thresholds | a right label | a wrong one | nothing | labels a clip |",
        "|---|---|---|---|---|",
    ]
    for name, row in models.items():
        shares = [
            f"{row[k]:.2f} ({row[f'{k}_95'][0]:.2f} to {row[f'{k}_95'][1]:.2f})" for k in _SHARES
        ]
        lines.append(f"| {name} | {' | '.join(shares)} | {row['labels']:.2f} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the recipe from the command line; return the exit code."""
    known = parser("audio", "folder of the .tar packs", folder=FREE)
    known.add_argument("--cache", type=Path, help="file for the decoded clips")
    options = known.parse_args(argv)
    return carry_out(lambda: make(options.packs, options.output, options.cache), options.threads)


_ABOUT: dict[str, Any] = {
    "description": (
        "527 sounds of AudioSet, several at once, each half second from the last two: speech,"
        " music and its genres and instruments, animals, vehicles, tools, water, alarms, rooms."
    ),
    "trained_on": (
        "AudioSet (Gemmeke et al., ICASSP 2017), by its authors: EfficientAT's mn04_as, a"
        " MobileNetV3 of width 0.4 distilled from transformers. The weights are unchanged."
    ),
    "split": (
        "mAP 0.432 on AudioSet's evaluation clips, as published, after windows of ten seconds."
        " Thresholds of labels were chosen on clips of env_sound and sound2; what a user sees was"
        " counted on clips of other sources. mn04 has not learnt from any of these sets."
    ),
    "limits": (
        "Scores are those of the loudest kinds: quiet sounds behind music or speech are missed."
        " Not an alarm: do not rely on it for sirens, shots, glass or crying babies. Sounds of"
        " less than a second are often missed; names of kinds (Animal, Vehicle, Music) are shown"
        " beside those of the sounds themselves, sometimes alone."
    ),
    "licence_class": "free",
    "licence": (
        "MIT: EfficientAT, Copyright (c) 2022 Florian Schmid; the weights are unchanged."
        " Permission is hereby granted, free of charge, to any person obtaining a copy of this"
        " software and associated documentation files (the 'Software'), to deal in the Software"
        " without restriction, including without limitation the rights to use, copy, modify,"
        " merge, publish, distribute, sublicense, and/or sell copies of the Software, and to"
        " permit persons to whom the Software is furnished to do so, subject to the following"
        " conditions: The above copyright notice and this permission notice shall be included in"
        " all copies or substantial portions of the Software. THE SOFTWARE IS PROVIDED 'AS IS',"
        " WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE"
        " WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT."
        " IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR"
        " OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,"
        " OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE"
        " SOFTWARE."
    ),
}


if __name__ == "__main__":
    sys.exit(main())
