"""Reading of the audio packs: ESC-10, UrbanSound8K and excerpts of GTZAN, as 16 kHz mono."""

from __future__ import annotations

import csv
import io
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from costream.errors import UsageError
from costream.labels.recording import SILENCE
from costream.training.audio.examples import SAMPLE_RATE_HZ, Wave, gain, quiet
from weights.recipes.common import read_member

SETS = ("ESC-10", "UrbanSound8K", "GTZAN")
Part = Literal["train", "validation", "test"]
# Folds and songs held out for testing; GTZAN's numbers 0 and 5 for their longer excerpts.
TEST_FOLDS = {"ESC-10": 4, "UrbanSound8K": 3}
TEST_SONGS = (0, 5, *range(31, 41))
_VALIDATION = 8  # one in this many sources is for validation


@dataclass(frozen=True)
class SoundClip:
    """One labelled recording."""

    samples: npt.NDArray[np.int16]  # [N]
    label: str
    set: str  # one of SETS
    group: str  # its Freesound source, or its song
    part: Part
    long: bool  # an excerpt of GTZAN of 15 s or more

    @property
    def wave(self) -> npt.NDArray[np.float32]:
        """Samples from -1 to 1, float32 [N]."""
        return self.samples.astype(np.float32) / 32768.0


def read_clips(folder: Path, every: int = 1) -> list[SoundClip]:
    """Return every ``every``-th clip of all sets from the packs in ``folder``.

    Splits are by official fold and by song; an eighth of the remaining sources and songs is for
    validation. A Freesound source in both sets of sounds is kept on one side: if one of its
    clips is held out, the other is dropped. Raises UsageError if a pack is missing.
    """
    rows = [*_rows(folder, "env_sound"), *_rows(folder, "music_genre")]
    held_out = {r["group"] for r in rows if r["part"] == "test"}
    return [
        SoundClip(_decode(r.pop("bytes")), **r)
        for r in rows[::every]
        if r["part"] == "test" or r["group"] not in held_out
    ]


def _rows(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    path = folder / f"{name}.tar"
    if not path.is_file():
        raise UsageError(
            "the training sounds are missing",
            where=path,
            hint=f"give the folder of {path.name} with --packs",
        )
    with tarfile.open(path) as archive:
        table = read_member(archive, f"{name}/labels.csv").decode("utf-8")
        for row in csv.DictReader(io.StringIO(table)):
            known = _sound(row) if "fold" in row else _song(row)
            yield {**known, "bytes": read_member(archive, f"{name}/{row['file']}")}


def _sound(row: dict[str, str]) -> dict[str, Any]:
    test = int(row["fold"]) == TEST_FOLDS[row["dataset"]]
    label = row["label"].replace("_", " ")
    group = f"freesound {row['freesound_id']}"
    part = "test" if test else _learning(group)
    return {"label": label, "set": row["dataset"], "group": group, "part": part, "long": False}


def _song(row: dict[str, str]) -> dict[str, Any]:
    song = row["gtzan_id"]
    part = "test" if int(song.rpartition(".")[2]) in TEST_SONGS else _learning(song)
    long = float(row["seconds"]) >= 15
    return {"label": row["genre"], "set": "GTZAN", "group": song, "part": part, "long": long}


def _learning(group: str) -> Part:
    return "train" if zlib.crc32(group.encode()) % _VALIDATION else "validation"


def _decode(data: bytes) -> npt.NDArray[np.int16]:
    parts = []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(io.BytesIO(data)) as container:
        for frame in (*container.decode(audio=0), None):
            parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    return np.concatenate(parts)


BLOCK = 4000  # samples of a step
STEPS = 12  # length of a piece for the backbone
NO_MUSIC = "no music"
_MERGED = {"street music": "music"}  # an excerpt of a song is music too
# Probabilities and strengths of the augmentations.
_SPEEDS = (0.85, 1.18)
_LEVELS_DB = (-40.0, -9.0)  # of full scale, root mean square
_SILENT, _MIXED, _NOISY, _STRETCHED, _COLOURED = 0.03, 0.4, 0.4, 0.5, 0.6
_COLOUR_DB = 4.0
_NOISE_DB = (6.0, 25.0)  # level of a background clip below the main one
_SHARES = {"ESC-10": 0.2, "UrbanSound8K": 0.47, "GTZAN": 0.33}


def sound_label(clip: SoundClip) -> str:
    """Return the label of a clip in the model for sounds."""
    return "music" if clip.set == "GTZAN" else _MERGED.get(clip.label, clip.label)


def genre_label(clip: SoundClip) -> str | None:
    """Return the label of a clip in the model for genres; None if unknown."""
    if clip.set == "GTZAN":
        return clip.label
    return None if sound_label(clip) == "music" else NO_MUSIC


@dataclass(frozen=True)
class Batch:
    """B pieces of T steps. Targets of heads: [B, K], zeros where unknown."""

    waves: Tensor  # float32 [B, T * BLOCK]
    sounds: Tensor
    genres: Tensor


class PieceSampler:
    """Draws pieces of clips with random speed, tone, level, background noise and mixing.

    ``sounds``, ``genres``: labels of the heads.
    """

    def __init__(
        self,
        clips: Sequence[SoundClip],
        sounds: Sequence[str],
        genres: Sequence[str],
    ) -> None:
        self._clips = clips
        self._sounds = _one_hot([sound_label(c) for c in clips], sounds)
        self._genres = _one_hot([genre_label(c) for c in clips], genres)
        self._silence = _one_hot([SILENCE], sounds)[0], _one_hot([NO_MUSIC], genres)[0]
        weights = np.array(balance(clips))
        self._weights = weights / weights.sum()

    def batch(self, size: int, rng: np.random.Generator, steps: int = STEPS) -> Batch:
        """Return a batch of ``size`` pieces of ``steps`` steps."""
        waves = np.zeros((size, steps * BLOCK), np.float32)
        sounds = np.zeros((size, self._sounds.shape[1]), np.float32)
        genres = np.zeros((size, self._genres.shape[1]), np.float32)
        for k in range(size):
            if rng.random() < _SILENT:
                waves[k] = quiet(rng, waves.shape[1])
                sounds[k], genres[k] = self._silence
                continue
            wave, index = self._piece(rng, steps)
            sounds[k], genres[k] = self._sounds[index], self._genres[index]
            if rng.random() < _MIXED:
                other, second = self._piece(rng, steps)
                share = float(rng.uniform(0.5, 1.0))
                wave = share * wave + (1 - share) * other
                sounds[k] = share * sounds[k] + (1 - share) * self._sounds[second]
                both = genres[k].any() and self._genres[second].any()
                mixed = share * genres[k] + (1 - share) * self._genres[second]
                genres[k] = mixed if both else 0.0
            elif rng.random() < _NOISY:
                wave = wave + gain(-rng.uniform(*_NOISE_DB)) * self._piece(rng, steps)[0]
            waves[k] = gain(rng.uniform(*_LEVELS_DB)) * wave
        return Batch(*map(torch.from_numpy, (waves, sounds, genres)))

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


def balance(clips: Sequence[SoundClip]) -> list[float]:
    """Return the relative weight of drawing each clip.

    Each set has a fixed share. In it a class is weighted by the square root of its number of
    clips, and so is a source, some of which were cut into a hundred similar clips; a long
    excerpt is weighted by the square root of its length.
    """
    classes = Counter((c.set, c.label) for c in clips)
    sources = Counter((c.set, c.group) for c in clips)
    each = [
        (len(c.samples) / classes[c.set, c.label] / sources[c.set, c.group]) ** 0.5 for c in clips
    ]
    sums = {
        name: sum(w for w, c in zip(each, clips, strict=True) if c.set == name) for name in _SHARES
    }
    return [_SHARES[c.set] * w / sums[c.set] for w, c in zip(each, clips, strict=True)]


def colour(wave: Wave, rng: np.random.Generator) -> Wave:
    """Return a sound with a smooth random equalisation, as of another microphone or room."""
    spectrum = np.fft.rfft(wave)
    pitch = np.log2(np.linspace(60.0, SAMPLE_RATE_HZ / 2, len(spectrum)))
    knots = np.linspace(pitch[0], pitch[-1], 6)
    db = np.interp(pitch, knots, rng.normal(0, _COLOUR_DB, len(knots)))
    return np.fft.irfft(spectrum * 10 ** (db / 20), len(wave)).astype(np.float32)


def mask(rows: Tensor, rng: np.random.Generator) -> Tensor:
    """Mask random bands and times of log-mel frames [B, F, bands] in place and return them.

    SpecAugment (Park et al., 2019).
    """
    batch, frames, bands = rows.shape
    fill = rows.mean((1, 2))
    for k in range(batch):
        for _ in range(2):
            width, begin = int(rng.integers(0, 8)), int(rng.integers(bands))
            rows[k, :, begin : begin + width] = fill[k]
        width, begin = int(rng.integers(0, 16)), int(rng.integers(frames))
        rows[k, begin : begin + width] = fill[k]
    return rows


def _one_hot(labels: Sequence[str | None], names: Sequence[str]) -> npt.NDArray[np.float32]:
    out = np.zeros((len(labels), len(names)), np.float32)
    for row, label in zip(out, labels, strict=True):
        if label is not None:
            row[names.index(label)] = 1.0
    return out
