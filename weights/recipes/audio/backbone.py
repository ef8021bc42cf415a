"""Training of the audio backbone on labels and by distillation from a larger network."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.core.errors import UsageError
from costream.models.audio.audio_net import ContinualAudioNet
from costream.training.checkpoint import RandomState, Stateful, TrainingCheckpoint
from costream.training.optim import Average, Optimizer, Schedule, fastest_autocast
from weights.recipes.audio.lessons import DistillationSet, LessonBank, make_mel
from weights.recipes.audio.pieces import STEPS, louder, mask
from weights.recipes.audio.teacher import CLASSES, WIDTH
from weights.recipes.common import soft_cross_entropy

log = logging.getLogger("costream")
REPORT_S = 10.0  # between two lines of progress
_FOR_STATISTICS = 2048  # pieces
# Loss weights of the teacher's features, its logits, the labels of sounds and of genres.
WEIGHTS = (2.0, 1.0, 1.0, 1.0)
# Added to standard deviations before dividing by them, so that near-constant values count less.
_FEATURE_FLOOR, _LOGIT_FLOOR = 0.02, 0.1
_HIDDEN = 512
# Index of the first token that covers the teacher's first window, and number of tokens per window
# hop; index of the first token that covers a second.
_FIRST, _EVERY, _FULL = 5, 2, 3


class Student(nn.Module):
    """The backbone with heads on its tokens for training; only the backbone is kept.

    ``lessons``: examples, to standardise features and logits, and without ``start`` spectrograms.
    ``start``: the network, without norms, whose weights are the first ones.
    """

    features_mean: Tensor
    features_spread: Tensor
    logits_mean: Tensor
    logits_spread: Tensor

    def __init__(self, lessons: DistillationSet, start: ContinualAudioNet | None = None) -> None:
        super().__init__()
        rows = lessons.spectrograms[:512].float()
        if start is None:
            self.backbone = ContinualAudioNet(norm=True)
            self.backbone.mel = make_mel()
            self.backbone.centre.copy_(rows.mean((0, 1)))
            self.backbone.spread.copy_(rows.std((0, 1)))
        else:
            self.backbone = with_norms(start, rows)
        width = self.backbone.token_width
        self.sounds = nn.Linear(width, lessons.sounds.shape[1])
        self.genres = nn.Linear(width, lessons.genres.shape[1])
        self.hidden = nn.Sequential(nn.Linear(width, _HIDDEN), nn.ReLU())
        self.features, self.logits = nn.Linear(_HIDDEN, WIDTH), nn.Linear(_HIDDEN, CLASSES)
        for name, said, floor in (
            ("features", lessons.features, _FEATURE_FLOOR),
            ("logits", lessons.logits, _LOGIT_FLOOR),
        ):
            values = said.float().flatten(0, 1)
            self.register_buffer(f"{name}_mean", values.mean(0))
            self.register_buffer(f"{name}_spread", values.std(0) + floor)

    def losses(self, spectrograms: Tensor, lessons: DistillationSet, smoothing: float) -> Tensor:
        """Return the losses of the teacher's features and logits, of sounds and of genres, [4]."""
        with fastest_autocast():
            tokens = self.backbone.encode(spectrograms)
        tokens = tokens.float()
        hidden = self.hidden(tokens[:, _FIRST::_EVERY])
        tokens = tokens[:, _FULL:]
        taught = [
            F.mse_loss(reader(hidden), (said.float() - mean) / spread)
            for reader, said, mean, spread in (
                (self.features, lessons.features, self.features_mean, self.features_spread),
                (self.logits, lessons.logits, self.logits_mean, self.logits_spread),
            )
        ]
        read = [
            soft_cross_entropy(
                reader(tokens), target[:, None].expand(-1, tokens.shape[1], -1), smoothing
            )
            for reader, target in ((self.sounds, lessons.sounds), (self.genres, lessons.genres))
        ]
        return torch.stack([*taught, *read])


@torch.no_grad()
def with_norms(net: ContinualAudioNet, spectrograms: Tensor) -> ContinualAudioNet:
    """Return the same network with batch normalisation, as needed to train.

    ``spectrograms`` [N, F, bands]: examples, for the statistics.
    """
    widths = [layer.convolution.out_width for layer in net.blocks]
    out = ContinualAudioNet(
        net.token_width, widths[:-1], widths[-1], net.pool, net.sample_rate_hz, norm=True
    )
    own = {k: v for k, v in net.state_dict().items() if not k.endswith("convolution.bias")}
    out.load_state_dict(own, strict=False)
    rows = ((spectrograms - net.centre) / net.spread).unsqueeze(3)
    for layer, before in zip(out.blocks, net.blocks, strict=True):
        norm, bias = layer.norm, before.convolution.bias
        if norm is None or bias is None:
            raise ValueError("the network to start from has norms already")
        values = layer.convolution(rows).flatten(0, 2)
        norm.running_mean, norm.running_var = values.mean(0), values.var(0)
        norm.weight.copy_((norm.running_var + norm.eps).sqrt())
        norm.bias.copy_(norm.running_mean + bias)
        rows = before(rows)
    return out


def without_norms(net: ContinualAudioNet) -> ContinualAudioNet:
    """Return the same network with batch normalisation folded into the convolutions."""
    widths = [layer.convolution.out_width for layer in net.blocks]
    out = ContinualAudioNet(net.token_width, widths[:-1], widths[-1], net.pool, net.sample_rate_hz)
    state = {k: v for k, v in net.state_dict().items() if ".norm." not in k}
    for k, layer in enumerate(net.blocks):
        weight, bias = layer.folded()
        state |= {f"layers.{k}.convolution.weight": weight, f"layers.{k}.convolution.bias": bias}
    out.load_state_dict(state)
    return out.train(net.training)


class _Progress:
    """Losses and speed of a training, and the losses of held-out pieces, for the log."""

    def __init__(self, student: Student, held: DistillationSet) -> None:
        self._student, self._held = student, held
        self._since_s, self._losses = time.monotonic(), list[Tensor]()

    def add(self, place: str, losses: Tensor) -> None:
        """Add the losses of a gradient step; every ten seconds, log them."""
        self._losses.append(losses)
        passed_s = time.monotonic() - self._since_s
        if passed_s < REPORT_S:
            return
        told = _listed(torch.stack(self._losses).mean(0))
        speed = len(self._losses) / passed_s
        log.info(
            "backbone: %s, %.1f steps/s, losses %s, held out %s", place, speed, told, self.held()
        )
        self._since_s, self._losses = time.monotonic(), []

    @torch.no_grad()
    def held(self) -> str:
        """Return the losses of the pieces held out."""
        self._student.eval()
        losses = self._student.losses(self._held.spectrograms.float(), self._held, 0.0)
        self._student.train()
        return _listed(losses)


def _what_is_left(schedule: Schedule, passed_s: float) -> Schedule:
    """Return a schedule of which some seconds have passed before the first step."""
    if not schedule.seconds:
        return schedule
    if passed_s >= schedule.seconds:
        raise UsageError(
            f"the first pieces took {passed_s:.0f} s, so no time is left to learn",
            hint="a larger --seconds, or more --workers",
        )
    return replace(schedule, seconds=schedule.seconds - passed_s)


def _listed(losses: Tensor) -> str:
    return " ".join(f"{x:.3f}" for x in losses.tolist())


def train_backbone(
    bank: LessonBank,
    held: DistillationSet,
    schedule: Schedule,
    seed: int,
    start: ContinualAudioNet | None = None,
    partial: TrainingCheckpoint | None = None,
    update: Callable[[], None] | None = None,
    began_s: float | None = None,
) -> Student:
    """Train a student on the bank's device from ``start``, or from random weights.

    It gets the averaged weights. ``held``: pieces of other clips, whose losses go to the log.
    ``update`` is called often; it may add pieces to the bank. ``began_s``: when the seconds of the
    schedule began, by ``time.monotonic``; default: now. UsageError if none are left.
    """
    began_s = time.monotonic() if began_s is None else began_s
    torch.manual_seed(seed)
    student = Student(bank.first(_FOR_STATISTICS), start).to(bank.device)
    weights, held = torch.tensor(WEIGHTS, device=bank.device), held.to(bank.device)
    rng, average, progress = np.random.default_rng(seed), Average(student), _Progress(student, held)
    parts: dict[str, Stateful] = {"random": RandomState(rng), "average": average}
    title = f"backbone, pieces of {STEPS} steps"
    left = _what_is_left(schedule, time.monotonic() - began_s)
    bar = Optimizer([student], left, title, partial, parts)
    student.train()
    for step in bar:
        if update is not None:
            update()
        drawn = bank.draw(schedule.batch, rng)
        spectrograms = mask(louder(drawn.spectrograms.float(), rng), rng)
        losses = student.losses(spectrograms, drawn, schedule.smoothing)
        bar.step((weights * losses).sum())
        average.update(student)
        progress.add(f"{step} of {schedule.steps}, {bank.size} pieces", losses.detach())
    last = progress.held()
    student.load_state_dict(average.weights)
    log.info("backbone: held out %s, with averaged weights %s", last, progress.held())
    return student.eval()
