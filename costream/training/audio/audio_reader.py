"""Reading of a user's audio examples as tokens, with the sources and frontend of a run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from costream.core.errors import UsageError
from costream.core.records import AudioBlock, AudioFormat
from costream.labels.examples import Example
from costream.sources.base import SourceOptions
from costream.training.feature_cache import FeatureCache, example_key, example_seed, join_keys
from costream.training.open_examples import check_examples, of_each, open_example
from costream.training.optim import device_of
from costream.weights_io.card import Card

log = logging.getLogger("costream")

SAMPLE_RATE_HZ = 16_000
_QUIET_DB = (-95.0, -62.0)  # level of silence
Wave = npt.NDArray[np.float32]
LEVELS_DB = (-12.0, 6.0)  # gain of an example's variants
CHUNK = 64  # blocks in one call of a frontend
MOST_BYTES = 400_000_000  # of samples held in memory
LEAD = 4  # preceding blocks of other sound, for tokens as after a change


def quiet(rng: np.random.Generator, size: int) -> Wave:
    """Return silence: digital zeros, or the noise of a microphone in a quiet room."""
    if rng.random() < 0.2:
        return np.zeros(size, np.float32)
    spectrum = np.fft.rfft(rng.standard_normal(size))
    frequencies = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE_HZ), 20.0)
    wave = np.fft.irfft(spectrum * frequencies ** -rng.uniform(0.0, 0.8), size)
    wave /= np.sqrt(np.mean(wave**2))
    if rng.random() < 0.3:  # mains hum
        hum = rng.choice([50.0, 60.0]) * rng.integers(1, 4)
        wave += rng.uniform(0, 1) * np.sin(2 * np.pi * hum * np.arange(size) / SAMPLE_RATE_HZ)
    return (gain(rng.uniform(*_QUIET_DB)) * wave).astype(np.float32)


def gain(db: float) -> float:
    """Return the factor of a level change in decibels."""
    return float(10 ** (db / 20))


@dataclass(frozen=True)
class EncodedAudio:
    """Frontend tokens of an example.

    ``tokens``: [T, D] of the unchanged example, then of variants with another level, other block
    boundaries and other sound before it.
    """

    label: str
    tokens: tuple[Tensor, ...]


class AudioReader:
    """Encodes audio as tokens: each example unchanged and in ``variants`` variants.

    The variants and the sound before them are determined by the seed and the file names: cached
    tokens stay valid when examples are added or relabelled.
    """

    def __init__(
        self, card: Card, frontend: Any, variants: int, seed: int, cache: FeatureCache
    ) -> None:
        self._card, self._frontend, self._variants = card, frontend, variants
        self._seed, self._cache = seed, cache
        sound = AudioFormat(frontend.sample_rate_hz, frontend.block)
        self._options = SourceOptions(sound=sound)
        self._wave = lru_cache(maxsize=2)(self._samples)  # an example and the preceding one

    def check(self, examples: Sequence[Example]) -> None:
        """Raise an error that names all recordings that cannot be used."""
        check_examples(examples, self._card, self._frontend, self._options)

    def read(self, examples: Sequence[Example]) -> list[EncodedAudio]:
        """Return the tokens of the examples, in their order.

        UsageError, naming file or line, for an example without sound; SourceError if it cannot be
        read or is not audio.
        """
        # The preceding example is of any class, and changes little when examples come and go.
        order = sorted(range(len(examples)), key=lambda k: example_seed(examples[k], self._seed))
        bar = tqdm(order, "listening", file=sys.stderr, disable=None, leave=False)
        before = dict(zip(order, order[-1:] + order, strict=False))
        found = of_each(bar, lambda k: self._read(examples[k], examples[before[k]]))
        self._wave.cache_clear()
        out = dict(zip(order, found, strict=True))
        return [out[k] for k in range(len(examples))]

    def blocks(self, examples: Sequence[Example]) -> list[EncodedAudio]:
        """Return the samples of the examples as what the frontend takes, rows [T, block].

        Above the memory limit, only a random sample of the examples is returned. Raises as
        ``read`` does.
        """
        found, free_bytes = list[EncodedAudio](), MOST_BYTES
        for k in np.random.default_rng(self._seed).permutation(len(examples)):
            rows = torch.from_numpy(self._wave(examples[k])).view(-1, self._frontend.block)
            free_bytes -= rows.nbytes
            if found and free_bytes < 0:
                log.warning("fine-tuning on %d of %d examples", len(found), len(examples))
                break
            found.append(EncodedAudio(examples[k].label, (rows,)))
        self._wave.cache_clear()
        return found

    def silence(self, label: str, count: int, blocks: int) -> list[EncodedAudio]:
        """Return ``count`` stretches of silence: digital zeros or a microphone's faint noise."""
        rng = np.random.default_rng(self._seed)
        waves = [quiet(rng, blocks * self._frontend.block) for _ in range(count)]
        return [
            EncodedAudio(label, (self._tokens(wave), *self._varied(wave, waves[k - 1], rng)))
            for k, wave in enumerate(waves)
        ]

    def _read(self, example: Example, before: Example) -> EncodedAudio:
        plain = self._cache.make(example_key(example), lambda: [self._tokens(self._wave(example))])
        if not self._variants:
            return EncodedAudio(example.label, tuple(plain))
        rng = np.random.default_rng(example_seed(example, self._seed))
        key = join_keys(example_key(example), example_key(before), [self._seed, self._variants])
        varied = self._cache.make(
            key, lambda: self._varied(self._wave(example), self._wave(before), rng)
        )
        return EncodedAudio(example.label, (*plain, *varied))

    def _varied(self, samples: Wave, before: Wave, rng: np.random.Generator) -> list[Tensor]:
        """Return the tokens of variants of samples [N], a multiple of the block length."""
        block = self._frontend.block
        lead = np.resize(before[-LEAD * block :], LEAD * block)
        out = []
        for _ in range(self._variants):
            skipped = int(rng.integers(block)) if len(samples) > block else 0
            blocks = (len(samples) - skipped) // block
            factor = np.float32(gain(rng.uniform(*LEVELS_DB)))
            varied = factor * samples[skipped : skipped + blocks * block]
            out.append(self._tokens(np.concatenate([lead, varied]))[LEAD:])
        return out

    @torch.no_grad()
    def _tokens(self, samples: Wave) -> Tensor:
        blocks = torch.from_numpy(samples).view(1, -1, self._frontend.block)
        blocks = blocks.to(device_of(self._frontend))
        state = self._frontend.init_state(1)
        parts = torch.split(blocks, CHUNK, 1)
        return torch.cat([self._frontend.forward_steps(x, state) for x in parts], 1)[0].cpu()

    def _samples(self, example: Example) -> Wave:
        with open_example(example, self._card, self._frontend, self._options) as items:
            parts = [item.samples for item in items if isinstance(item, AudioBlock)]
        if not parts:
            raise UsageError("this example has no sound", where=example.where)
        return np.concatenate(parts)
