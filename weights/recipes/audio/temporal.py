"""Temporal models of sound: their streams of tokens and their training."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from costream.models.oad.cooadtr import CoTrans
from costream.training.audio.audio_reader import gain
from costream.training.optim import Average, Optimizer, Schedule
from weights.recipes.action.loop import logits
from weights.recipes.audio.adviser import Adviser
from weights.recipes.audio.data import SoundClip
from weights.recipes.audio.pieces import BLOCK, LabelOf, PieceSampler, balance, made_up
from weights.recipes.common import soft_cross_entropy

Net = TypeVar("Net", bound=nn.Module)


@dataclass(frozen=True)
class TemporalRecipe:
    """Training of a temporal model, whose logits are the sum of the network's and the adviser's."""

    dropout: float
    part: int  # length of the parts by which longer recordings count for the adviser, in tokens
    advice: float  # share of the adviser's logits in the sum
    own: float  # share of the network's logits that is kept after the training
    seed: int = 0  # of its training, added to the recipe's


STREAM_STEPS = 160  # length of a stream: longer than the models' window
_PIECES = (6, 40)  # range of a sound's steps in a stream
# Pieces of a second or less, and the quiet after them, in steps.
_SHORT_PIECES, _RESTS = (1, 5), (3, 9)
_NOISE = 20 * BLOCK  # samples of a made-up sound
_LAG = 2  # steps after which a token covers more of the new sound than of the last
_CLIP_STEPS = 48  # of a recording, from its beginning
_MIXED, _EVENNESS = 0.5, 0.4  # how often streams of tokens are mixed, and how evenly


@dataclass(frozen=True)
class Bank:
    """N streams as tokens [N, T, D] with the targets [N, T, K] of both heads."""

    tokens: Tensor
    sounds: Tensor
    genres: Tensor


@torch.no_grad()
def made_up_tokens(frontend: nn.Module, count: int, seed: int) -> list[Tensor]:
    """Return the tokens [T, D] of ``count`` made-up sounds of no label, at random levels."""
    rng = np.random.default_rng(seed)
    waves = (gain(rng.uniform(-40, -10)) * made_up(rng, _NOISE) for _ in range(count))
    return [frontend(torch.from_numpy(wave)[None].float())[0] for wave in waves]


@torch.no_grad()
def token_bank(
    frontend: nn.Module, supply: PieceSampler, streams: int, seed: int, short: float = 0.0
) -> Bank:
    """Return streams of directly consecutive augmented pieces.

    ``short``: share of them that are of a second or less, and followed by quiet.
    """
    rng = np.random.default_rng(seed)
    frontend.eval()
    parts: list[tuple[Tensor, ...]] = []
    bar = tqdm(range(streams), desc="streams", file=sys.stderr, disable=None, leave=False)
    for _ in bar:
        lengths: list[int] = []
        rests: list[bool] = []
        while sum(lengths) < STREAM_STEPS:
            is_short = bool(short) and rng.random() < short
            lengths.append(int(rng.integers(*(_SHORT_PIECES if is_short else _PIECES))))
            rests.append(False)
            if is_short:
                lengths.append(int(rng.integers(*_RESTS)))
                rests.append(True)
        pieces = [
            supply.rest(rng, length) if quiet else supply.batch(1, rng, length)
            for length, quiet in zip(lengths, rests, strict=True)
        ]
        waves = torch.cat([piece.waves[0] for piece in pieces])
        tokens = frontend(waves[None, : STREAM_STEPS * BLOCK])[0]
        told = _told(lengths, rests)
        targets = (
            torch.cat(rows)[told]
            for rows in ([p.sounds for p in pieces], [p.genres for p in pieces])
        )
        parts.append((tokens, *targets))
    return Bank(*(torch.stack(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Recordings:
    """N recordings as they are: tokens [N, T, D] and targets [N, T, K], zeros after their ends.

    ``shares`` [N]: how often each is drawn. Steps of digital silence, with which ESC's clips are
    padded, have no target.
    """

    tokens: Tensor
    targets: Tensor
    shares: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls,
        clips: Sequence[SoundClip],
        tokens: Sequence[Tensor],
        labels: Sequence[str],
        label_of: LabelOf,
        shares: Mapping[str, float],
        adviser: Adviser,
    ) -> Recordings:
        """Return the beginnings of the clips that have one of the labels, with advised targets."""
        known = [k for k, clip in enumerate(clips) if label_of(clip) in labels]
        room = torch.zeros(len(known), _CLIP_STEPS, tokens[0].shape[1])
        targets = torch.zeros(len(known), _CLIP_STEPS, len(labels))
        for row, k in enumerate(known):
            own = tokens[k][:_CLIP_STEPS]
            room[row, : len(own)] = own
            heard = torch.from_numpy(clips[k].blocks(BLOCK)).any(1)[: len(own)]
            told = F.one_hot(torch.tensor(labels.index(label_of(clips[k]) or "")), len(labels))
            told = adviser.blend(told.float(), tokens[k].mean(0))
            targets[row, : len(own)] = told * heard[:, None]
        drawn = np.array(balance([clips[k] for k in known], shares))
        return cls(room, targets, drawn / drawn.sum())

    def joined(self, other: Recordings, share: float) -> Recordings:
        """Return the recordings of both, of which the others have this share."""
        return Recordings(
            torch.cat([self.tokens, other.tokens]),
            torch.cat([self.targets, other.targets]),
            np.concatenate([(1 - share) * self.shares, share * other.shares]),
        )


Given: TypeAlias = tuple[tuple[Tensor, Tensor], Recordings, Adviser]  # training data of a model


def label_shares(streams: tuple[Tensor, Tensor], recordings: Recordings) -> Tensor:
    """Return the share of each label in the training data of ``train_head``, [K]."""
    drawn = torch.from_numpy(recordings.shares).float()
    parts = streams[1].mean((0, 1)), torch.tensordot(drawn, recordings.targets.sum(1), 1)
    return torch.stack([part / part.sum() for part in parts]).mean(0)


def train_head(
    head: nn.Module,
    streams: tuple[Tensor, Tensor],
    recordings: Recordings,
    schedule: Schedule,
    seed: int,
    title: str,
    averaged: bool = False,
) -> None:
    """Train a temporal model, or a linear layer, on tokens with targets.

    Half of the loss comes from streams, [N, T, D] and [N, T, K]. Their pieces begin at random
    places, and so do the positions, as in the paper: this trains for any first row of the
    embeddings and for windows that are not yet full. The other half comes from recordings as they
    are, from their beginnings. Some are mixed with one another. ``averaged``: its weights are a
    running mean over the steps in the end.
    """
    rng = np.random.default_rng(seed)
    bar, average = Optimizer([head], schedule, title), Average(head)
    for _ in bar:
        length = int(rng.integers(8, STREAM_STEPS + 1))
        begin = int(rng.integers(STREAM_STEPS - length + 1))
        piece = slice(begin, begin + length)
        drawn = torch.from_numpy(rng.choice(len(streams[0]), schedule.batch // 2))
        whole = torch.from_numpy(
            rng.choice(len(recordings.tokens), schedule.batch, p=recordings.shares)
        )
        losses = [
            soft_cross_entropy(logits(head, tokens, rng), targets, schedule.smoothing)
            for tokens, targets in (
                _mixed(streams[0][drawn, piece], streams[1][drawn, piece], rng),
                _mixed(recordings.tokens[whole], recordings.targets[whole], rng),
            )
        ]
        bar.step((losses[0] + losses[1]) / 2)
        average.update(head)
    if averaged:
        head.load_state_dict(average.weights)


def rounded(module: Net) -> Net:
    """Return a module with its weights rounded to half precision, as stored."""
    return module.half().float()


def trained(
    make_head: Callable[[], nn.Module], given: Given, steps: int, seed: int, recipe: TemporalRecipe
) -> nn.Module:
    """Return a trained temporal model, or a trained linear classifier of tokens."""
    seed += recipe.seed
    torch.manual_seed(seed)
    head, (streams, recordings, adviser) = make_head(), given
    if isinstance(head, CoTrans):
        head.skip = adviser.layer(recipe.advice)
    schedule = Schedule(steps, 16, rate=1e-3, decay=0.05, smoothing=0.1)
    train_head(head, streams, recordings, schedule, seed, type(head).__name__)
    if isinstance(head, CoTrans) and head.head is not None:
        with torch.no_grad():
            for own in head.head.parameters():
                own.mul_(recipe.own)
    return rounded(head.eval())


def _mixed(tokens: Tensor, targets: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return tokens [B, T, D] and targets [B, T, K], or each mixed with another stream.

    Steps where one of both has no target have none. Mixup (Zhang et al., ICLR 2018) of tokens.
    """
    if rng.random() >= _MIXED:
        return tokens, targets
    share, other = rng.beta(_EVENNESS, _EVENNESS), torch.from_numpy(rng.permutation(len(tokens)))
    known = targets.any(-1, True) & targets[other].any(-1, True)
    mixed = (share * rows + (1 - share) * rows[other] for rows in (tokens, targets))
    tokens, targets = mixed
    return tokens, targets * known


def _told(lengths: Sequence[int], rests: Sequence[bool]) -> Tensor:
    """Return the piece that each step of a stream is told of, int64 [T].

    A change is told after the lag with which tokens show it, but at once after quiet.
    """
    place = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))[:STREAM_STEPS]
    earlier = torch.cat([place[:1].expand(_LAG), place[:-_LAG]])
    quiet = torch.tensor(list(rests))
    return torch.where(quiet[earlier] & ~quiet[place], place, earlier)
