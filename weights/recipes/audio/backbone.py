"""Training of the audio backbone on labels and by distillation from a larger network."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
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
from costream.training.audio.examples import SAMPLE_RATE_HZ, gain
from costream.training.optim import Optimizer, RandomState, Schedule, TrainingCheckpoint
from weights.recipes.action.loop import logits
from weights.recipes.audio.pieces import BLOCK, STEPS, PieceSampler, made_up, mask
from weights.recipes.common import soft_cross_entropy, teacher_file

# Distillation targets from mn04, the teacher of the audio backbone.
#
# mn04 (Schmid, Koutini, Widmer, Efficient large-scale audio tagging via transformer-to-CNN
# knowledge distillation, ICASSP 2023; MIT) is trained on AudioSet. Its features and its scores of
# 527 classes teach the backbone to distinguish sounds that have no labels here. Teacher and
# student get the same augmented pieces (Beyer et al., Knowledge distillation: A good teacher is
# patient and consistent, CVPR 2022). Neither the teacher's weights nor its outputs are in the
# shipped weights.


WINDOW = 24_000  # samples of a window
HOP = 8_000
WIDTH, CLASSES = 384, 527
_RATE_HZ, _FFT, _FRAME = 32_000, 1024, 320  # of the teacher's spectrogram
_LEVEL = 0.1  # root mean square of what the teacher hears, unless it is all but silent
_FAINT = 1e-3


class Said(NamedTuple):
    """Outputs of the teacher for a sound, window by window."""

    features: npt.NDArray[np.float32]  # [windows, WIDTH]
    logits: npt.NDArray[np.float32]  # [windows, CLASSES]


class Mn04:
    """The teacher: sound to features and class scores, a window every HOP samples.

    Raises UsageError if the pack ``teachers_audio.tar`` or the package onnxruntime is missing.
    """

    def __init__(self, path: Path) -> None:
        with teacher_file(path, "mn04_as.onnx") as file:
            try:
                from onnxruntime import InferenceSession, SessionOptions
            except ImportError as error:
                raise UsageError(
                    "the recipe needs a runtime for ONNX networks", hint="pip install onnxruntime"
                ) from error
            options = SessionOptions()
            options.intra_op_num_threads = 1
            self._network = InferenceSession(str(file), options)
        with teacher_file(path, "mn04_mel.npz") as file, np.load(file) as front:
            self._mel, self._window = front["mel"].T.copy(), front["window"]

    def __call__(self, wave: npt.NDArray[np.float32]) -> Said:
        """Return the outputs for a sound [N] at 16 kHz, at a standard level."""
        level = float(np.sqrt(np.mean(wave**2)))
        rows = self._spectrogram(wave * (_LEVEL / level if level > _FAINT else 1.0))
        count = (len(wave) - WINDOW) // HOP + 1
        size, every = (n * _RATE_HZ // SAMPLE_RATE_HZ // _FRAME for n in (WINDOW, HOP))
        windows = [rows[k * every : k * every + size].T[None] for k in range(count)]
        logits, features = self._network.run(
            ["logits", "embedding"], {"mel": np.stack(windows).astype(np.float32)}
        )
        return Said(features, logits)

    def _spectrogram(self, wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the network's input [frames, 128], 100 frames a second."""
        from soxr import resample  # librosa needs it

        high = resample(wave, SAMPLE_RATE_HZ, _RATE_HZ)
        high = np.pad(high[1:] - 0.97 * high[:-1], _FFT // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(high, _FFT)[::_FRAME]
        power = np.abs(np.fft.rfft(frames * self._window)) ** 2
        rows: npt.NDArray[np.float32] = (np.log(power @ self._mel + 1e-5) + 4.5) / 5
        return rows


Teacher: TypeAlias = Callable[[npt.NDArray[np.float32]], Said]
# Loss weights of the teacher's features, its logits, the labels of sounds and of genres.
WEIGHTS = (2.0, 1.0, 1.0, 1.0)
# Added to standard deviations before dividing by them, so that near-constant values count less.
_FEATURE_FLOOR, _LOGIT_FLOOR = 0.02, 0.1
_HIDDEN = 512
_LOW_HZ, _HIGH_HZ = 50.0, 7800.0
# Index of the first token that covers the teacher's first window, and number of tokens per window
# hop; index of the first token that covers a second.
_FIRST, _EVERY, _FULL = 5, 2, 3


@dataclass(frozen=True)
class DistillationSet:
    """N pieces: log-mel frames, targets of both heads, the teacher's outputs for each window."""

    spectrograms: Tensor  # float16 [N, F, bands]
    sounds: Tensor  # [N, K]
    genres: Tensor
    features: Tensor  # float16 [N, windows, WIDTH]
    logits: Tensor  # float16 [N, windows, CLASSES]

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

    ``lessons``: some of them are used to standardise features and logits, and without ``start``
    spectrograms. ``start``: the network, without norms, whose weights are the first ones.
    """

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
        self._features = _standard(lessons.features, _FEATURE_FLOOR)
        self._logits = _standard(lessons.logits, _LOGIT_FLOOR)

    def losses(self, spectrograms: Tensor, lessons: DistillationSet, smoothing: float) -> Tensor:
        """Return the losses of the teacher's features and logits, of sounds and of genres, [4]."""
        tokens = self.backbone.encode(spectrograms)
        hidden = self.hidden(tokens[:, _FIRST::_EVERY])
        tokens = tokens[:, _FULL:]
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


def _standard(said: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of values [N, windows, D] from every fourth piece."""
    rows = said[::4].float().flatten(0, 1)
    return rows.mean(0), rows.std(0) + floor


def train_backbone(
    lessons: DistillationSet,
    cycles: Sequence[Schedule],
    seed: int,
    start: ContinualAudioNet | None = None,
    cache: Path | None = None,
) -> Student:
    """Train a student from ``start``, or from random weights.

    ``cycles``: in sequence, each with a new optimiser (warm restarts: Loshchilov, Hutter,
    ICLR 2017). ``cache``: folder for the checkpoints, from which an interrupted training resumes.
    """
    torch.manual_seed(seed)
    student, weights = Student(lessons, start), torch.tensor(WEIGHTS)
    for number, schedule in enumerate(cycles):
        rng, partial = np.random.default_rng(seed + number), None
        if cache is not None:
            identity = {"schedule": asdict(schedule), "seed": seed, "pieces": len(lessons.sounds)}
            partial = TrainingCheckpoint(cache / f"backbone-{number}.partial", identity, False)
        title = f"backbone, pieces of {STEPS} steps"
        bar = Optimizer([student], schedule, title, partial, {"random": RandomState(rng)})
        student.train()
        for _ in bar:
            some = rng.choice(len(lessons.sounds), schedule.batch, replace=False)
            drawn = lessons.take(torch.from_numpy(some))
            spectrograms = mask(drawn.spectrograms.float(), rng)
            losses = student.losses(spectrograms, drawn, schedule.smoothing)
            bar.step((weights * losses).sum())
        if partial is not None:  # a later run begins behind this cycle
            partial.write(schedule.steps, bar.parts)
    return student.eval()


STREAM_STEPS = 160  # length of a stream: longer than the models' window
_PIECES = (6, 40)  # range of a sound's steps in a stream
_NOISE = 20 * BLOCK  # samples of a made-up sound
_LAG = 2  # steps after which a token covers more of the new sound than of the last


@dataclass(frozen=True)
class Bank:
    """N streams as tokens [N, T, D] with the targets [N, T, K] of both heads."""

    tokens: Tensor
    sounds: Tensor
    genres: Tensor


@torch.no_grad()
def made_up_tokens(backbone: ContinualAudioNet, count: int, seed: int) -> list[Tensor]:
    """Return the tokens [T, D] of ``count`` made-up sounds of no label, at random levels."""
    rng = np.random.default_rng(seed)
    waves = (gain(rng.uniform(-40, -10)) * made_up(rng, _NOISE) for _ in range(count))
    return [backbone(torch.from_numpy(wave)[None].float())[0] for wave in waves]


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
        pieces = [supply.batch(1, rng, length) for length in lengths]
        waves = torch.cat([piece.waves[0] for piece in pieces])
        tokens = backbone(waves[None, : STREAM_STEPS * BLOCK])[0]
        repeats = torch.tensor(lengths)
        targets = [
            _later(torch.cat(rows).repeat_interleave(repeats, 0)[:STREAM_STEPS])
            for rows in ([p.sounds for p in pieces], [p.genres for p in pieces])
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
