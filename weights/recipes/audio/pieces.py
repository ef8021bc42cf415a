"""Pieces of sound to train on: random speed, colour, room, level, noise and mixing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.labels.recording import SILENCE
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ, Wave, gain, quiet
from weights.recipes.audio.data import NO_MUSIC, OTHER, SoundClip, genre_label

BLOCK = 4000  # samples of a step
STEPS = 12  # length of a piece for the backbone
# Probabilities and strengths of the augmentations.
_SPEEDS = (0.8, 1.25)
_LEVELS_DB = (-45.0, -9.0)  # of full scale, root mean square
_SILENT, _MADE_UP, _MIXED, _NOISY = 0.03, 0.05, 0.35, 0.4
_STRETCHED, _COLOURED, _IN_ROOM, _NARROW = 0.5, 0.6, 0.3, 0.15
_COLOUR_DB = 4.0
_LOUDER_DB = (-8.0, 8.0)  # of spectrograms
_FLOOR = 1e-7  # of their power, see LogMel
_LOW_HZ, _HIGH_HZ = (40.0, 400.0), (2500.0, 7500.0)  # limits of a narrow band
_NOISE_DB = (6.0, 25.0)  # level of a background below the main sound
_ROOM_S, _DIRECT_DB = (0.15, 0.9), (-6.0, 12.0)  # reverberation time; direct to reverberant sound
# Recordings that are cut short: their lengths, least part of the loudest one's energy, levels.
_CUTS_S, _LOUD, _CUT_DB = (0.25, 0.5, 0.75, 1.0), 0.3, (-15.0, 5.0)
# Shares of drawing from some sets and labels; the rest is drawn from all others.
SHARES = {"GTZAN": 0.2, "UrbanSound8K": 0.15, "speech": 0.12}
_REST = "others"
_LONGEST_S = 5.0  # beyond it, a clip's length does not count

LabelOf = Callable[[SoundClip], str | None]


@dataclass(frozen=True)
class Batch:
    """B pieces of T steps. Targets of heads: [B, K], zeros where unknown."""

    waves: Tensor  # float32 [B, T * BLOCK]
    sounds: Tensor
    genres: Tensor


class PieceSampler:
    """Draws pieces of clips.

    ``sounds``, ``genres``: labels of the heads. ``label_of``: of a clip for the first; labels that
    are not in ``sounds`` are OTHER. ``shares``: see ``balance``.
    """

    def __init__(
        self,
        clips: Sequence[SoundClip],
        sounds: Sequence[str],
        genres: Sequence[str],
        label_of: LabelOf,
        shares: Mapping[str, float] = SHARES,
    ) -> None:
        self._clips = clips
        known = [label_of(c) for c in clips]
        names = [n if n is None or n in sounds else OTHER for n in known]
        self._sounds = _one_hot(names, sounds)
        self._genres = _one_hot([genre_label(c) for c in clips], genres)
        self._silence = _one_hot([SILENCE if SILENCE in sounds else OTHER], sounds)[0]
        self._other = _one_hot([OTHER], sounds)[0]
        self._no_music = _one_hot([NO_MUSIC], genres)[0]
        weights = np.array(balance(clips, shares))
        self._weights = weights / weights.sum()

    def batch(self, size: int, rng: np.random.Generator, steps: int = STEPS) -> Batch:
        """Return a batch of ``size`` pieces of ``steps`` steps."""
        waves = np.zeros((size, steps * BLOCK), np.float32)
        sounds = np.zeros((size, self._sounds.shape[1]), np.float32)
        genres = np.zeros((size, self._genres.shape[1]), np.float32)
        for k in range(size):
            kind = rng.random()
            if kind < _SILENT:
                waves[k] = quiet(rng, waves.shape[1])
                sounds[k], genres[k] = self._silence, self._no_music
                continue
            if kind < _SILENT + _MADE_UP:
                wave = made_up(rng, waves.shape[1])
                sounds[k], genres[k] = self._other, self._no_music
            else:
                wave, index = self._piece(rng, steps)
                sounds[k], genres[k] = self._sounds[index], self._genres[index]
                if rng.random() < _MIXED:
                    other, second = self._piece(rng, steps)
                    share = float(rng.uniform(0.5, 1.0))
                    wave = share * wave + (1 - share) * other
                    sounds[k] = _both(sounds[k], self._sounds[second], share)
                    genres[k] = _both(genres[k], self._genres[second], share)
                elif rng.random() < _NOISY:
                    low = gain(-rng.uniform(*_NOISE_DB))
                    wave = wave + low * self._background(rng, steps)
                if rng.random() < _IN_ROOM:
                    wave = in_room(wave, rng)
                if rng.random() < _NARROW:
                    wave = narrow(wave, rng)
            waves[k] = gain(rng.uniform(*_LEVELS_DB)) * wave
        return Batch(*map(torch.from_numpy, (waves, sounds, genres)))

    def rest(self, rng: np.random.Generator, steps: int) -> Batch:
        """Return a piece of ``steps`` steps in which nothing is heard."""
        wave = torch.from_numpy(quiet(rng, steps * BLOCK)).float()
        told = (torch.from_numpy(row) for row in (self._silence, self._no_music))
        return Batch(*(row[None] for row in (wave, *told)))

    def _background(self, rng: np.random.Generator, steps: int) -> Wave:
        if rng.random() < 0.4:
            return made_up(rng, steps * BLOCK)
        return self._piece(rng, steps)[0]

    def _piece(self, rng: np.random.Generator, steps: int) -> tuple[Wave, int]:
        """Return a piece with root mean square 1, and the number of its clip."""
        index = int(rng.choice(len(self._clips), p=self._weights))
        wave = self._clips[index].wave
        speed = float(rng.uniform(*_SPEEDS)) if rng.random() < _STRETCHED else 1.0
        size = steps * BLOCK
        begin = int(rng.integers(0, max(1, len(wave) - int(size * speed) + 1)))
        # Short clips are repeated.
        at = begin + np.arange(size) * speed
        low = at.astype(np.int64)
        part = (at - low).astype(np.float32)
        piece = wave[low % len(wave)] * (1 - part) + wave[(low + 1) % len(wave)] * part
        if rng.random() < _COLOURED:
            piece = colour(piece, rng)
        return piece / np.sqrt(np.mean(piece**2) + 1e-9), index


def _both(
    one: npt.NDArray[np.float32], two: npt.NDArray[np.float32], share: float
) -> npt.NDArray[np.float32]:
    """Return the targets of a mixture; zeros if one of them is unknown."""
    known = one.any() and two.any()
    return share * one + (1 - share) * two if known else np.zeros_like(one)


def stretched(clips: Sequence[SoundClip]) -> list[SoundClip]:
    """Return the clips at the lowest and the highest speed, for each clip one after the other."""
    from soxr import resample  # librosa needs it

    return [
        replace(clip, samples=(resample(clip.wave, at, SAMPLE_RATE_HZ) * 32767).astype(np.int16))
        for clip in clips
        for at in (SAMPLE_RATE_HZ * speed for speed in _SPEEDS)
    ]


def cut(samples: npt.NDArray[np.int16], seconds: float) -> npt.NDArray[np.int16]:
    """Return this many seconds of a recording [N], or all of it, around its loudest part."""
    size = round(seconds * SAMPLE_RATE_HZ)
    energy = np.append(0.0, np.cumsum(np.square(samples, dtype=np.float64)))
    begin = int((energy[size:] - energy[:-size]).argmax()) if len(samples) > size else 0
    return samples[begin : begin + size]


def cut_short(clip: SoundClip, rng: np.random.Generator) -> SoundClip:
    """Return up to a second of a recording from where it is loud, at another level."""
    size = round(float(rng.choice(_CUTS_S)) * SAMPLE_RATE_HZ)
    samples = clip.samples
    if len(samples) > size:
        energy = np.append(0.0, np.cumsum(np.square(samples, dtype=np.float64)))
        within = energy[size:] - energy[:-size]
        loud = np.flatnonzero(within >= _LOUD * within.max())
        begin = int(within.argmax()) if rng.random() < 0.5 else int(rng.choice(loud))
        samples = samples[begin : begin + size]
    wave = samples.astype(np.float32) * gain(rng.uniform(*_CUT_DB))
    return replace(clip, samples=wave.clip(-32768, 32767).astype(np.int16))


def balance(clips: Sequence[SoundClip], shares: Mapping[str, float]) -> list[float]:
    """Return the relative weight of drawing each clip.

    Some sets and labels have fixed ``shares``. In each a class is weighted by the square root of
    its number of clips, and so is a source, some of which were cut into a hundred similar clips;
    clips are also weighted by the square root of their length.
    """
    kinds = [next((k for k in (c.set, c.label) if k in shares), _REST) for c in clips]
    classes = Counter((k, c.label) for k, c in zip(kinds, clips, strict=True))
    sources = Counter((c.set, c.label, c.group) for c in clips)
    seconds = [min(len(c.samples) / SAMPLE_RATE_HZ, _LONGEST_S) for c in clips]
    each = [
        (t / classes[k, c.label] / sources[c.set, c.label, c.group]) ** 0.5
        for t, k, c in zip(seconds, kinds, clips, strict=True)
    ]
    sums = {
        kind: sum(w for w, k in zip(each, kinds, strict=True) if k == kind) for kind in {*kinds}
    }
    given = {_REST: 1 - sum(shares.values()), **shares}
    return [given[k] * w / sums[k] for w, k in zip(each, kinds, strict=True)]


def colour(wave: Wave, rng: np.random.Generator) -> Wave:
    """Return a sound with a smooth random equalisation, as of another microphone or room."""
    spectrum = np.fft.rfft(wave)
    pitch = np.log2(np.linspace(60.0, SAMPLE_RATE_HZ / 2, len(spectrum)))
    knots = np.linspace(pitch[0], pitch[-1], 6)
    db = np.interp(pitch, knots, rng.normal(0, _COLOUR_DB, len(knots)))
    return np.fft.irfft(spectrum * 10 ** (db / 20), len(wave)).astype(np.float32)


def narrow(wave: Wave, rng: np.random.Generator) -> Wave:
    """Return a sound within a band, as of a telephone or a small loudspeaker; mean square 1."""
    spectrum = np.fft.rfft(wave)
    frequencies = np.fft.rfftfreq(len(wave), 1 / SAMPLE_RATE_HZ)
    low, high = (np.exp(rng.uniform(*np.log(limits))) for limits in (_LOW_HZ, _HIGH_HZ))
    order = 2 * rng.integers(1, 5)  # of both slopes, as of Butterworth filters
    passed = 1 / np.sqrt(1 + (frequencies / high) ** (2 * order))
    passed *= frequencies**order / np.sqrt(low ** (2 * order) + frequencies ** (2 * order))
    return _levelled(np.fft.irfft(spectrum * passed, len(wave)))


def in_room(wave: Wave, rng: np.random.Generator) -> Wave:
    """Return a sound with the reverberation of a random room: decaying noise."""
    time_s = float(rng.uniform(*_ROOM_S))
    size = int(time_s * SAMPLE_RATE_HZ)
    tail = rng.standard_normal(size) * 10 ** (-3 * np.arange(size) / size)
    tail *= gain(-rng.uniform(*_DIRECT_DB)) / np.sqrt(np.sum(tail**2))
    tail[0] += 1
    length = 1 << (len(wave) + size - 1).bit_length()
    wet = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length))[: len(wave)]
    return _levelled(wet)


def made_up(rng: np.random.Generator, size: int) -> Wave:
    """Return a sound of no label: noise of a colour, a tone, a sweep or hum; mean square 1."""
    t = np.arange(size) / SAMPLE_RATE_HZ
    kind = rng.choice(["noise", "band", "tone", "sweep", "hum"], p=[0.4, 0.15, 0.2, 0.1, 0.15])
    if kind in ("noise", "band"):
        spectrum = np.fft.rfft(rng.standard_normal(size))
        frequencies = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE_HZ), 20.0)
        spectrum *= frequencies ** -rng.choice([0.0, 0.5, 1.0, rng.uniform(-0.8, 1.2)])
        if kind == "band":
            centre, octaves = np.exp2(rng.uniform(7, 12.5)), rng.uniform(0.2, 2)
            spectrum *= np.exp(-0.5 * (np.log2(frequencies / centre) / octaves * 2) ** 2)
        wave = np.fft.irfft(spectrum, size)
    else:
        pitch = np.exp2(rng.uniform(5.8, 12.2)) * np.ones(size)
        if kind == "hum":
            pitch[:] = rng.choice([50.0, 60.0, rng.uniform(40, 150)])
        elif kind == "sweep":
            pitch *= np.exp2(np.linspace(0, rng.uniform(-3, 3), size))
        phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE_HZ
        strength, wave = rng.uniform(0.5, 3.0), np.zeros(size)
        for n in range(1, 1 if kind == "sweep" else int(rng.integers(1, 12)) + 1):
            heard = pitch * n < SAMPLE_RATE_HZ / 2
            wave += heard * n**-strength * np.sin(n * phase + rng.uniform(0, 2 * np.pi))
        if kind == "sweep":
            wave = np.where(pitch < SAMPLE_RATE_HZ / 2, np.sin(phase), 0.0)
        wave += 10 ** rng.uniform(-4, -1) * rng.standard_normal(size)
    if rng.random() < 0.15:  # slow fading
        wave *= 1 + 0.7 * np.sin(2 * np.pi * rng.uniform(0.2, 2) * t + rng.uniform(0, 6))
    return _levelled(wave)


def _levelled(wave: npt.NDArray[np.float64]) -> Wave:
    """Return a sound with root mean square 1."""
    out: Wave = (wave / np.sqrt(np.mean(wave**2) + 1e-9)).astype(np.float32)
    return out


def louder(rows: Tensor, rng: np.random.Generator) -> Tensor:
    """Return log-mel frames [B, F, bands] at other levels, but for their floor."""
    db = rng.uniform(*_LOUDER_DB, (len(rows), 1, 1)).astype(np.float32)
    factors = torch.from_numpy(10 ** (db / 10)).to(rows.device)
    return ((rows.exp() - _FLOOR).clamp(min=0) * factors + _FLOOR).log()


def mask(rows: Tensor, rng: np.random.Generator) -> Tensor:
    """Return log-mel frames [B, F, bands] with random bands and times masked.

    SpecAugment (Park et al., 2019).
    """
    batch, frames, bands = rows.shape
    hidden = _stretches(rng, batch, bands, 8) | _stretches(rng, batch, bands, 8)
    masked = hidden[:, None] | _stretches(rng, batch, frames, 16)[:, :, None]
    return torch.where(torch.from_numpy(masked).to(rows.device), rows.mean((1, 2), True), rows)


def _stretches(
    rng: np.random.Generator, batch: int, size: int, longest: int
) -> npt.NDArray[np.bool_]:
    """Return which of ``size`` places are in a random stretch shorter than ``longest``, [B, N]."""
    begin, length = rng.integers(size, size=(batch, 1)), rng.integers(longest, size=(batch, 1))
    at = np.arange(size)
    return (at >= begin) & (at < begin + length)


def _one_hot(labels: Sequence[str | None], names: Sequence[str]) -> npt.NDArray[np.float32]:
    out = np.zeros((len(labels), len(names)), np.float32)
    for row, label in zip(out, labels, strict=True):
        if label is not None:
            row[names.index(label)] = 1.0
    return out
