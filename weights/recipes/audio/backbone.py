"""Training of the audio backbone on labels and by distillation from a larger network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.frontends.audio import ContinualAudioNet
from costream.frontends.mel import LogMel
from costream.training.sound_augment import STEPS, PieceSampler, mask
from costream.training.sound_teacher import CLASSES, WIDTH, Said
from weights.recipes.action.loop import Optimizer, Schedule, soft_cross_entropy
from weights.recipes.audio.data import SAMPLE_RATE_HZ

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
            bar.descend((weights * losses).sum())
            if watch is not None:
                watch(step, student, losses.detach())
    return student.eval()
