"""Training data of the audio backbone: augmented pieces with the outputs of the teacher."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor
from tqdm import tqdm

from costream.core.errors import CostreamError, UsageError
from costream.labels.recording import SILENCE
from costream.models.audio.mel import LogMel
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from costream.weights_io.file import write_whole
from weights.recipes.audio.data import (
    MUSIC,
    NO_MUSIC,
    OTHER,
    URBAN_FOLD,
    SoundClip,
    read_clips,
)
from weights.recipes.audio.pieces import PieceSampler
from weights.recipes.audio.teacher import WINDOW, Teacher

SHARD = 250  # pieces in a file of the cache
_HELD = 512  # pieces of validation clips, at most
_AHEAD, _PAUSE_S = 500, 0.5  # shards that are looked for, and how often
_LEAST = 8  # clips of a label that the backbone distinguishes
_LOW_HZ, _HIGH_HZ = 50.0, 7800.0


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

    def to(self, device: torch.device | Literal["cpu"]) -> DistillationSet:
        """Return the pieces on a device."""
        return DistillationSet(*(part.to(device) for part in self.parts()))


class LessonBank:
    """Pieces on a device, up to ``capacity``, to which more are added as they come."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.device, self.size = device, 0
        self._capacity, self._parts = capacity, list[Tensor]()

    def add(self, lessons: DistillationSet) -> None:
        """Add pieces. Raises ValueError if they do not fit."""
        end = self.size + len(lessons.sounds)
        if end > self._capacity:
            raise ValueError(f"{end} pieces do not fit into a bank of {self._capacity}")
        if not self._parts:
            self._parts = [
                part.new_empty((self._capacity, *part.shape[1:]), device=self.device)
                for part in lessons.parts()
            ]
        for room, part in zip(self._parts, lessons.parts(), strict=True):
            room[self.size : end] = part.to(self.device)
        self.size = end

    def first(self, count: int) -> DistillationSet:
        """Return the first pieces, at most ``count``, on the CPU."""
        return DistillationSet(*(part[: min(count, self.size)].cpu() for part in self._parts))

    def draw(self, count: int, rng: np.random.Generator) -> DistillationSet:
        """Return random pieces."""
        rows = torch.from_numpy(rng.integers(self.size, size=count)).to(self.device)
        return DistillationSet(*(part[rows] for part in self._parts))


def make_mel() -> LogMel:
    """Return the spectrogram module of the backbone."""
    return LogMel().fill(SAMPLE_RATE_HZ, _LOW_HZ, _HIGH_HZ)


def prepare(supply: PieceSampler, teacher: Teacher, pieces: int, seed: int) -> DistillationSet:
    """Draw ``pieces`` pieces and compute the teacher's outputs for them."""
    rng = np.random.default_rng(seed)
    mel = make_mel()
    parts: list[tuple[Tensor, ...]] = []
    for _ in range(pieces):
        batch = supply.batch(1, rng)
        said = [torch.from_numpy(x).half() for x in teacher(batch.waves[0].numpy())]
        parts.append((mel(batch.waves)[0].half(), batch.sounds[0], batch.genres[0], *said))
    return DistillationSet(*(torch.stack(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class LessonPlan:
    """Pieces in numbered shards: number 0 of validation clips, the others to learn from.

    ``make_teacher`` is called where shards are made, perhaps in another process. ``cache``: folder
    for the shards, whose names say the seed and a fold of one's own, as ``name`` does; ``waves``,
    ``fold``: see ``read_clips``.
    """

    packs: Path
    make_teacher: Callable[[], Teacher]
    pieces: int
    seed: int
    every: int = 1
    cache: Path | None = None
    waves: Path | None = None
    fold: str = URBAN_FOLD

    def name(self, what: str, number: int = 0) -> str:
        """Return the name in the cache of a result that depends on these clips."""
        fold = "" if self.fold == URBAN_FOLD else f"-fold{self.fold}"
        return f"{what}-{self.seed + number}{fold}.safetensors"

    def clips(self) -> list[SoundClip]:
        """Return the clips of all packs."""
        return read_clips(self.packs, self.every, self.waves, self.fold)

    def said(self, clips: Sequence[SoundClip], what: str = "said") -> tuple[Tensor, Sequence[str]]:
        """Return the teacher's logits for each of the clips, the mean of its windows [N, C].

        Also return the names of its classes. Short clips are repeated. ``what``: the name of these
        clips' logits in the cache.
        """
        teacher = self.make_teacher()
        path = None if self.cache is None else self.cache / self.name(what)
        if path is not None and path.exists():
            return load_file(path)["logits"], teacher.classes
        rows = []
        for clip in tqdm(clips, "teacher", file=sys.stderr, disable=None, leave=False):
            wave = np.resize(clip.wave, max(WINDOW, len(clip.samples)))
            rows.append(torch.from_numpy(teacher(wave).logits.mean(0)))
        logits = torch.stack(rows)
        if path is not None:
            write_whole(path, [save({"logits": logits})])
        return logits, teacher.classes

    @property
    def shards(self) -> int:
        """Number of shards to train on."""
        return max(1, self.pieces // SHARD)

    def path(self, number: int) -> Path | None:
        """Return the file of a shard."""
        return None if self.cache is None else self.cache / self.name("lessons", number)

    def make(self, numbers: Sequence[int]) -> Iterator[DistillationSet]:
        """Yield the shards of these numbers, from the cache if they are there."""
        make_set: Callable[[int], DistillationSet] | None = None
        for number in numbers:
            path = self.path(number)
            if path is not None and path.exists():
                yield DistillationSet(**load_file(path))
                continue
            make_set = make_set or self._maker()
            lessons = make_set(number)
            if path is not None:
                named = {f.name: getattr(lessons, f.name) for f in fields(lessons)}
                write_whole(path, [save(named)])
            yield lessons

    def _maker(self) -> Callable[[int], DistillationSet]:
        teacher = self.make_teacher()
        clips = self.clips()
        train, held = ([c for c in clips if c.part == p] for p in ("train", "validation"))
        counts = Counter(_fine_label(c) for c in train)
        sounds = sorted({label for label, n in counts.items() if label and n >= _LEAST})
        sounds = sorted({*sounds, OTHER, SILENCE})
        given = sounds, genre_names(clips), _fine_label
        held_out, learnt = PieceSampler(held, *given), PieceSampler(train, *given)

        def make_set(number: int) -> DistillationSet:
            supply = learnt if number else held_out
            most = SHARD if number else _HELD
            return prepare(supply, teacher, min(most, self.pieces), self.seed + number)

        return make_set


def genre_names(clips: Sequence[SoundClip]) -> list[str]:
    """Return the labels of the model for genres."""
    return [*sorted({c.label for c in clips if c.set == "GTZAN"}), NO_MUSIC]


def _fine_label(clip: SoundClip) -> str | None:
    return MUSIC if clip.set == "GTZAN" else clip.label or None


class LessonWorkers:
    """Processes that make the shards of a cached plan while other processes train on them.

    With a ``count`` of 0 the shards are those that come from elsewhere.
    """

    def __init__(self, plan: LessonPlan, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._plan = plan
        self._left = list(range(plan.shards + 1))  # numbers of shards that did not come yet
        self._held: DistillationSet | None = None
        self._looked_s = 0.0
        self._processes = [
            context.Process(target=_make_shards, args=(plan, k, count), daemon=True)
            for k in range(count)
        ]
        for process in self._processes:
            process.start()

    def wait(self, bank: LessonBank, pieces: int) -> DistillationSet:
        """Add shards to the bank until there are ``pieces``; return those of validation clips."""
        least = min(pieces, self._plan.shards * min(SHARD, self._plan.pieces))
        while self._held is None or bank.size < least:
            time.sleep(_PAUSE_S)
            self.update(bank)
        return self._held

    def update(self, bank: LessonBank) -> None:
        """Add the shards to the bank that came since the last call.

        Raises UsageError if a process failed; it has logged the reason.
        """
        if time.monotonic() - self._looked_s < _PAUSE_S:
            return
        for process in self._processes:
            if process.exitcode:
                raise UsageError("a process that makes pieces failed")
        for number in self._left[:_AHEAD]:
            path = self._plan.path(number)
            if path is not None and path.exists():
                lessons = DistillationSet(**load_file(path))
                self._left.remove(number)
                if number:
                    bank.add(lessons)
                else:
                    self._held = lessons
        self._looked_s = time.monotonic()

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


def _make_shards(plan: LessonPlan, first: int, every: int) -> None:
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    try:
        for _ in plan.make(range(first, plan.shards + 1, every)):
            if parent is not None and not parent.is_alive():
                return
    except CostreamError as error:
        print(error, file=sys.stderr)
        sys.exit(int(error.exit_code))
