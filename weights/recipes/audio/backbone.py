"""Training of the audio backbone on labels and by distillation from a larger network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.errors import UsageError
from costream.frontends.audio import ContinualAudioNet
from costream.frontends.mel import LogMel
from costream.training.audio.examples import SAMPLE_RATE_HZ
from costream.training.optim import Optimizer, Schedule
from weights.recipes.action.loop import logits
from weights.recipes.audio.data import BLOCK, STEPS, PieceSampler, mask
from weights.recipes.common import soft_cross_entropy, teacher_file

# Distillation targets from YAMNet, the teacher of the audio backbone.
#
# YAMNet (Plakal, Ellis; Apache-2.0) is trained on AudioSet. Its 1024 features of every half second
# and its scores of 521 classes teach the backbone to distinguish sounds that have no labels here.
# Teacher and student get the same augmented pieces (Beyer et al., Knowledge distillation: A good
# teacher is patient and consistent, CVPR 2022). Neither the teacher's weights nor its outputs are
# in the shipped weights.


WINDOW = 15_600  # samples of a window
HOP = 8_000
WIDTH, CLASSES = 1024, 521
_SURE = 1e-6  # least distance of scores from 0 and 1 before the logit
_FEATURES = "global_average_pooling2d/Mean"


class Said(NamedTuple):
    """Outputs of the teacher for a sound, window by window."""

    features: npt.NDArray[np.float32]  # [windows, WIDTH], square roots
    logits: npt.NDArray[np.float32]  # [windows, CLASSES]


class Yamnet:
    """The teacher: sound to features and class scores, a window every HOP samples.

    Raises UsageError if the pack ``teachers.tar`` or the package ai-edge-litert is missing.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "yamnet_a.tflite") as file:
            try:
                from ai_edge_litert.interpreter import Interpreter
            except ImportError as error:
                raise UsageError(
                    "the recipe needs a runtime for TFLite networks",
                    hint="pip install ai-edge-litert",
                ) from error
            # Inner features can be read only if all tensors are preserved.
            self._network = Interpreter(
                str(file), num_threads=1, experimental_preserve_all_tensors=True
            )
        self._network.allocate_tensors()
        self._input = self._network.get_input_details()[0]["index"]
        details = self._network.get_tensor_details()
        (self._features,) = (d["index"] for d in details if d["name"].endswith(_FEATURES))
        outputs = self._network.get_output_details()
        (self._scores,) = (d["index"] for d in outputs if d["shape"][-1] == CLASSES)

    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz.

        Features are means of nonnegative values; their square roots are distributed more evenly.
        """
        features, logits = [], []
        for begin in range(0, len(wave) - WINDOW + 1, HOP):
            self._network.set_tensor(self._input, wave[None, begin : begin + WINDOW])
            self._network.invoke()
            features.append(np.sqrt(self._network.get_tensor(self._features)[0]))
            scores = np.clip(self._network.get_tensor(self._scores)[0], _SURE, 1 - _SURE)
            logits.append(np.log(scores / (1 - scores)))
        return Said(np.stack(features), np.stack(logits))


Teacher: TypeAlias = Callable[[npt.NDArray[np.float32]], Said]
# Loss weights of the teacher's features, its logits, the labels of sounds and of genres.
WEIGHTS = (2.0, 1.0, 1.0, 1.0)
# Added to standard deviations before dividing by them, so that near-constant values count less.
_FEATURE_FLOOR, _LOGIT_FLOOR = 0.02, 0.1
_HIDDEN = 512
_LOW_HZ, _HIGH_HZ = 50.0, 7800.0
# Index of the first token that covers the second of the teacher's first window, and number of
# tokens per window hop.
_FIRST, _EVERY = 3, 2


@dataclass(frozen=True)
class DistillationSet:
    """N pieces: log-mel frames, targets of both heads, the teacher's outputs for each window."""

    spectrograms: Tensor  # float16 [N, F, bands]
    sounds: Tensor  # [N, K]
    genres: Tensor
    features: Tensor  # float16 [N, windows, 1024]
    logits: Tensor  # float16 [N, windows, 521]

    def parts(self) -> tuple[Tensor, ...]:
        """Return the fields, in order."""
        return tuple(getattr(self, f.name) for f in fields(self))

    def take(self, rows: Tensor) -> DistillationSet:
        """Return the pieces of these numbers."""
        return DistillationSet(*(part[rows] for part in self.parts()))


def prepare(supply: PieceSampler, teacher: Teacher, pieces: int, seed: int) -> DistillationSet:
    """Draw ``pieces`` pieces and compute the teacher's outputs for them."""
    rng = np.random.default_rng(seed)
    mel = make_mel()
    parts: list[tuple[Tensor, ...]] = []
    bar = tqdm(range(pieces), desc="teacher", file=sys.stderr, disable=None, leave=False)
    for _ in bar:
        batch = supply.batch(1, rng)
        said = [torch.from_numpy(x).half() for x in teacher(batch.waves[0].numpy())]
        parts.append((mel(batch.waves)[0].half(), batch.sounds[0], batch.genres[0], *said))
    return DistillationSet(*(torch.stack(column) for column in zip(*parts, strict=True)))


def join(lessons: Sequence[DistillationSet]) -> DistillationSet:
    """Return several sets of pieces as one."""
    columns = zip(*(each.parts() for each in lessons), strict=True)
    return DistillationSet(*(torch.cat(column) for column in columns))


def make_mel() -> LogMel:
    """Return the spectrogram module of the backbone."""
    return LogMel().fill(SAMPLE_RATE_HZ, _LOW_HZ, _HIGH_HZ)


class Student(nn.Module):
    """The backbone with heads on its tokens for training; only the backbone is kept.

    ``lessons``: some of them are used to standardise spectrograms, features and logits.
    """

    def __init__(self, lessons: DistillationSet) -> None:
        super().__init__()
        self.backbone = ContinualAudioNet(norm=True)
        self.backbone.mel = make_mel()
        width = self.backbone.token_width
        self.sounds = nn.Linear(width, lessons.sounds.shape[1])
        self.genres = nn.Linear(width, lessons.genres.shape[1])
        self.hidden = nn.Sequential(nn.Linear(width, _HIDDEN), nn.ReLU())
        self.features, self.logits = nn.Linear(_HIDDEN, WIDTH), nn.Linear(_HIDDEN, CLASSES)
        rows = lessons.spectrograms[:512].float().flatten(0, 1)
        self.backbone.centre.copy_(rows.mean(0))
        self.backbone.spread.copy_(rows.std(0))
        self._features = _standard(lessons.features, _FEATURE_FLOOR)
        self._logits = _standard(lessons.logits, _LOGIT_FLOOR)

    def losses(self, spectrograms: Tensor, lessons: DistillationSet, smoothing: float) -> Tensor:
        """Return the losses of the teacher's features and logits, of sounds and of genres, [4]."""
        tokens = self.backbone.encode(spectrograms)[:, _FIRST:]
        hidden = self.hidden(tokens[:, ::_EVERY])
        taught = [
            F.mse_loss(reader(hidden), (said.float() - mean) / spread)
            for reader, said, (mean, spread) in (
                (self.features, lessons.features, self._features),
                (self.logits, lessons.logits, self._logits),
            )
        ]
        read = [
            soft_cross_entropy(
                reader(tokens), target[:, None].expand(-1, tokens.shape[1], -1), smoothing
            )
            for reader, target in ((self.sounds, lessons.sounds), (self.genres, lessons.genres))
        ]
        return torch.stack([*taught, *read])


def _standard(said: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of values [N, windows, D] from every fourth piece."""
    rows = said[::4].float().flatten(0, 1)
    return rows.mean(0), rows.std(0) + floor


StepCallback: TypeAlias = Callable[[int, Student, Tensor], None]


def train_backbone(
    lessons: DistillationSet,
    cycles: Sequence[Schedule],
    seed: int,
    watch: StepCallback | None = None,
) -> Student:
    """Train a student; ``watch`` is called with each step, the student and its losses.

    ``cycles``: in sequence, each with a new optimiser (warm restarts: Loshchilov, Hutter,
    ICLR 2017).
    """
    torch.manual_seed(seed)
    student, weights = Student(lessons), torch.tensor(WEIGHTS)
    for number, schedule in enumerate(cycles):
        rng = np.random.default_rng(seed + number)
        bar = Optimizer([student], schedule, f"backbone, pieces of {STEPS} steps")
        student.train()
        for step in bar:
            some = rng.choice(len(lessons.sounds), schedule.batch, replace=False)
            drawn = lessons.take(torch.from_numpy(some))
            spectrograms = mask(drawn.spectrograms.float(), rng)
            losses = student.losses(spectrograms, drawn, schedule.smoothing)
            bar.step((weights * losses).sum())
            if watch is not None:
                watch(step, student, losses.detach())
    return student.eval()


STREAM_STEPS = 160  # length of a stream: longer than the models' window
_PIECES = (6, 40)  # range of a sound's steps in a stream
_LAG = 2  # steps after which a token covers more of the new sound than of the last


@dataclass(frozen=True)
class Bank:
    """N streams as tokens [N, T, D] with the targets [N, T, K] of both heads."""

    tokens: Tensor
    sounds: Tensor
    genres: Tensor


@torch.no_grad()
def token_bank(backbone: ContinualAudioNet, supply: PieceSampler, streams: int, seed: int) -> Bank:
    """Return streams of directly consecutive augmented pieces."""
    rng = np.random.default_rng(seed)
    backbone.eval()
    parts: list[tuple[Tensor, ...]] = []
    bar = tqdm(range(streams), desc="streams", file=sys.stderr, disable=None, leave=False)
    for _ in bar:
        lengths: list[int] = []
        while sum(lengths) < STREAM_STEPS:
            lengths.append(int(rng.integers(*_PIECES)))
        batch = supply.batch(len(lengths), rng, max(_PIECES))
        waves = [w[: n * BLOCK] for w, n in zip(batch.waves, lengths, strict=True)]
        tokens = backbone(torch.cat(waves)[None, : STREAM_STEPS * BLOCK])[0]
        repeats = torch.tensor(lengths)
        targets = [
            _later(t.repeat_interleave(repeats, 0)[:STREAM_STEPS])
            for t in (batch.sounds, batch.genres)
        ]
        parts.append((tokens, *targets))
    return Bank(*(torch.stack(column) for column in zip(*parts, strict=True)))


def train_head(
    head: nn.Module, tokens: Tensor, targets: Tensor, schedule: Schedule, seed: int, title: str
) -> None:
    """Train a temporal model, or a linear layer, on streams of tokens.

    Pieces of streams begin at random places, and so do the positions, as in the paper: this
    trains for any first row of the embeddings and for windows that are not yet full.
    """
    rng = np.random.default_rng(seed)
    bar = Optimizer([head], schedule, title)
    for _ in bar:
        rows = torch.from_numpy(rng.choice(len(tokens), schedule.batch))
        length = int(rng.integers(8, STREAM_STEPS + 1))
        begin = int(rng.integers(STREAM_STEPS - length + 1))
        piece = slice(begin, begin + length)
        scores = logits(head, tokens[rows, piece], rng)
        bar.step(soft_cross_entropy(scores, targets[rows, piece], schedule.smoothing))


def _later(targets: Tensor) -> Tensor:
    """Return the targets [T, K], delayed by the lag with which tokens show a change."""
    return torch.cat([targets[:1].expand(_LAG, -1), targets[:-_LAG]])
