"""Trains the backbone for sound: on labels, and on what a larger network hears."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.frontends.audio import ContinualAudioNet
from costream.training import sound_teacher
from costream.training.loop import Optimizer, Schedule, soft_cross_entropy
from costream.training.sound_augment import Batch, Supply, vary_spectrogram
from costream.training.sound_packs import RATE_HZ

_TAUGHT = 1.0  # weight of the teacher
_LOW_HZ, _HIGH_HZ = 50.0, 7800.0
_SETTLED = 2  # steps after which a token has heard enough to be judged


class Student(nn.Module):
    """The backbone and the linear readers that teach it; only the backbone is kept."""

    def __init__(self, sounds: int, genres: int) -> None:
        super().__init__()
        self.backbone = ContinualAudioNet(norm=True)
        self.backbone.mel.fill(RATE_HZ, _LOW_HZ, _HIGH_HZ)
        width = self.backbone.token_width
        self.sounds, self.genres = nn.Linear(width, sounds), nn.Linear(width, genres)
        self.features = nn.Sequential(
            nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, sound_teacher.WIDTH)
        )

    def loss(self, batch: Batch, smoothing: float, rng: np.random.Generator) -> Tensor:
        """Give the loss of a batch."""
        with torch.no_grad():
            rows = vary_spectrogram(self.backbone.mel(batch.waves), rng)
        tokens = self.backbone.encode(rows)[:, _SETTLED:]
        total = _TAUGHT * F.mse_loss(
            self.features(tokens[batch.known]), batch.taught[batch.known][:, _SETTLED:]
        )
        for reader, target in ((self.sounds, batch.sounds), (self.genres, batch.genres)):
            every = target[:, None].expand(-1, tokens.shape[1], -1)
            total = total + soft_cross_entropy(reader(tokens), every, smoothing)
        return total


def train_backbone(
    supply: Supply,
    sizes: tuple[int, int],
    schedule: Schedule,
    seed: int,
    watch: Callable[[int, Student], None] | None = None,
) -> Student:
    """Train a student; ``sizes``: classes of sounds and genres. ``watch`` is shown it at times."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    student = Student(*sizes).train()
    _standardise(student.backbone, [supply.batch(64, rng) for _ in range(4)])
    bar = Optimizer([student], schedule, "backbone")
    for step in bar:
        bar.descend(student.loss(supply.batch(schedule.batch, rng), schedule.smoothing, rng))
        if watch is not None:
            watch(step, student)
    return student.eval()


@torch.no_grad()
def _standardise(backbone: ContinualAudioNet, batches: Sequence[Batch]) -> None:
    """Measure the mean and the spread of each band."""
    rows = torch.cat([backbone.mel(batch.waves) for batch in batches]).flatten(0, 1)
    backbone.centre.copy_(rows.mean(0))
    backbone.spread.copy_(rows.std(0))
