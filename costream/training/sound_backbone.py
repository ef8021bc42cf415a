"""Trains the backbone for sound: on labels, and on what a larger network hears."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.frontends.audio import ContinualAudioNet
from costream.frontends.mel import LogMel
from costream.training import sound_teacher
from costream.training.loop import Optimizer, Schedule, soft_cross_entropy
from costream.training.sound_augment import STEPS, Supply, mask
from costream.training.sound_packs import RATE_HZ

Teacher: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]

_TAUGHT = 2.0  # weight of the teacher
_LOW_HZ, _HIGH_HZ = 50.0, 7800.0
# The first token whose second of sound is that of the teacher's first window, and how many
# tokens lie between two windows.
_FIRST, _EVERY = 3, 2


@dataclass(frozen=True)
class Lessons:
    """N pieces: log-mel frames, targets of both heads, what the teacher says of each window."""

    spectrograms: Tensor  # float16 [N, F, bands]
    sounds: Tensor  # [N, K]
    genres: Tensor
    taught: Tensor  # float16 [N, windows, 1024], standardised


def prepare(supply: Supply, teacher: Teacher, pieces: int, seed: int) -> Lessons:
    """Draw so many pieces and let the teacher listen to them."""
    rng = np.random.default_rng(seed)
    mel = make_mel()
    parts: list[tuple[Tensor, ...]] = []
    bar = tqdm(range(pieces), desc="teacher", file=sys.stderr, disable=None, leave=False)
    for _ in bar:
        batch = supply.batch(1, rng)
        taught = torch.from_numpy(teacher(batch.waves[0].numpy()))
        parts.append((mel(batch.waves)[0].half(), batch.sounds[0], batch.genres[0], taught.half()))
    spectrograms, sounds, genres, said = (torch.stack(c) for c in zip(*parts, strict=True))
    rows = said.float().flatten(0, 1)
    said = ((said - rows.mean(0)) / (rows.std(0) + 0.02)).half()
    return Lessons(spectrograms, sounds, genres, said)


def make_mel() -> LogMel:
    """Give the spectrogram that the backbone looks at."""
    return LogMel().fill(RATE_HZ, _LOW_HZ, _HIGH_HZ)


class Student(nn.Module):
    """The backbone and the linear readers that teach it; only the backbone is kept."""

    def __init__(self, sounds: int, genres: int) -> None:
        super().__init__()
        self.backbone = ContinualAudioNet(norm=True)
        self.backbone.mel = make_mel()
        width = self.backbone.token_width
        self.sounds, self.genres = nn.Linear(width, sounds), nn.Linear(width, genres)
        self.features = nn.Sequential(
            nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, sound_teacher.WIDTH)
        )

    def losses(self, spectrograms: Tensor, lessons: Lessons, smoothing: float) -> Tensor:
        """Give the losses of the teacher's features, of sounds and of genres, [3]."""
        tokens = self.backbone.encode(spectrograms)[:, _FIRST:]
        heard = self.features(tokens[:, ::_EVERY])
        taught = F.mse_loss(heard, lessons.taught.float())
        read = [
            soft_cross_entropy(
                reader(tokens), target[:, None].expand(-1, tokens.shape[1], -1), smoothing
            )
            for reader, target in ((self.sounds, lessons.sounds), (self.genres, lessons.genres))
        ]
        return torch.stack([_TAUGHT * taught, *read])


Watch: TypeAlias = Callable[[int, Student, Tensor], None]


def train_backbone(
    lessons: Lessons,
    schedule: Schedule,
    seed: int,
    watch: Watch | None = None,
) -> Student:
    """Train a student; ``watch`` is shown each step, the student and its losses."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    student = Student(lessons.sounds.shape[1], lessons.genres.shape[1]).train()
    rows = lessons.spectrograms[:512].float().flatten(0, 1)
    student.backbone.centre.copy_(rows.mean(0))
    student.backbone.spread.copy_(rows.std(0))
    bar = Optimizer([student], schedule, f"backbone, pieces of {STEPS} steps")
    for step in bar:
        some = torch.from_numpy(rng.choice(len(lessons.sounds), schedule.batch, replace=False))
        drawn = Lessons(*(part[some] for part in _parts(lessons)))
        spectrograms = mask(drawn.spectrograms.float(), rng)
        losses = student.losses(spectrograms, drawn, schedule.smoothing)
        bar.descend(losses.sum())
        if watch is not None:
            watch(step, student, losses.detach())
    return student.eval()


def _parts(lessons: Lessons) -> tuple[Tensor, ...]:
    return lessons.spectrograms, lessons.sounds, lessons.genres, lessons.taught
