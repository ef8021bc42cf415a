"""Reading of the audio packs as 16 kHz mono, their splits and the vocabulary of sounds."""

from __future__ import annotations

import csv
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt

from costream.core.errors import UsageError
from costream.labels.recording import SILENCE
from costream.training.audio.audio_reader import SAMPLE_RATE_HZ
from weights.recipes.common import read_member

PACKS = ("env_sound", "sound2", "sound_unlabelled", "music_genre")
Part = Literal["train", "validation", "test", "left out"]
PARTS: tuple[Part, ...] = ("train", "validation", "test", "left out")
LEARNT: tuple[Part, ...] = ("train", "validation")  # from which the temporal models learn
# Folds and songs held out for testing; GTZAN's numbers 0 and 5 for their longer excerpts.
URBAN_FOLD = "1"  # of UrbanSound8K; of fold 3 the packs have a part only
TEST_FOLDS = {"ESC-10": "4", "ESC-50": "fold4", "UrbanSound8K": URBAN_FOLD}
TEST_SONGS = (0, 5, *range(31, 41))
# Sets in the training data of the weights that the backbone starts from, split as here.
STARTED_ON = ("ESC-10", "UrbanSound8K", "GTZAN")
_TEST, _VALIDATION = 5, 8  # one in this many sources of the other sets, and of what remains
# Sets whose speakers or sources are unknown or few.
_TRAIN_ONLY = (
    "CourseSounds5",
    "DroneAudio",
    "Nonspeech100",
    "PreciseCommunity",
    "SpeechToIntent",
    "WakeWordBenchmark",
)
_BY_SOURCE = ("Kitchen20", "Philharmonia")  # of others the speaker, recording or block counts

# Label of a model -> labels of the packs. What is in neither table is a sound of no label.
MUSIC, OTHER, NO_MUSIC, SPEECH = "music", "other", "no music", "speech"
_OWN = (
    *("air conditioner", "airplane", "alarm", "applause", "baby cry", "bird song", "breathing"),
    *("brushing teeth", "can opening", "car horn", "cat", "chainsaw", "chicken"),
    *("children playing", "church bells", "clock tick", "cough", "cow", "crickets", "crow"),
    *("crying", "dishes", "dog bark", "door creak", "door knock", "drilling", "engine idling"),
    *("fire crackling", "fireworks", "footsteps", "frog", "glass breaking", "gun shot"),
    *("hand saw", "helicopter", "insects", "jackhammer", "keyboard typing", "laughter"),
    *("mouse click", "person sneeze", "pig", "rain", "rooster", "scream", "sea waves", "sheep"),
    *("siren", "snoring", "speech", "thunder", "toilet flush", "train", "vacuum cleaner"),
    *("washing machine", "water", "water drops", "wind"),
)
_MERGED = {
    "street music": MUSIC,
    "bell": "church bells",
    "crowd babble": "crowd",
    "cutlery": "dishes",
    "dishwasher": "washing machine",
    "drinking sipping": "drinking",
    "engine": "engine idling",
    "pouring water": "water",
    "shower": "water",
    "stream": "water",
    "throat clearing": "cough",
    "water tap": "water",
    **dict.fromkeys(
        ("bowed strings", "brass", "percussion", "plucked strings", "woodwind"),
        "musical instrument",
    ),
}
EVENTS = sorted({*_OWN, *_MERGED.values()})
SOUNDS = sorted({*EVENTS, OTHER, SILENCE})  # the labels of the model for sounds
# Neither a sound of a label nor surely none: no target but the teacher's.
_UNCERTAIN = (
    "",
    *("animal", "cat purr", "click", "cupboard door", "drawer", "drone", "extractor fan", "fan"),
    *("machine", "seagull", "traffic", "typewriter"),
)
# In a separate part, to measure how well new sounds are learnt from a few examples.
LEFT_OUT = (
    *("chopping", "donkey", "frying", "juicer", "lion", "monkey", "nose blowing"),
    *("page turning", "peeling", "sweeping"),
)


@dataclass(frozen=True)
class SoundClip:
    """One recording."""

    samples: npt.NDArray[np.int16]  # [N]
    label: str  # of the pack; empty if it has none
    set: str
    group: str  # its Freesound source, speaker or song
    part: Part
    long: bool  # an excerpt of GTZAN of 15 s or more

    @property
    def wave(self) -> npt.NDArray[np.float32]:
        """Samples from -1 to 1, float32 [N]."""
        return self.samples.astype(np.float32) / 32768.0

    def blocks(self, size: int) -> npt.NDArray[np.int16]:
        """Return the samples in blocks [N, size]; the last counts if at least half is filled."""
        count = max(1, round(len(self.samples) / size + 1e-9))
        padded = np.pad(self.samples, (0, max(0, count * size - len(self.samples))))
        return padded[: count * size].reshape(count, size)


def sound_label(clip: SoundClip) -> str | None:
    """Return the label of a clip in the model for sounds; None if unknown."""
    if clip.set == "GTZAN":
        return MUSIC
    if clip.label in _OWN:
        return clip.label
    return None if clip.label in _UNCERTAIN else _MERGED.get(clip.label, OTHER)


def genre_label(clip: SoundClip) -> str | None:
    """Return the label of a clip in the model for genres; None if unknown."""
    if clip.set == "GTZAN":
        return clip.label
    return NO_MUSIC if sound_label(clip) not in (MUSIC, "musical instrument", None) else None


def read_clips(
    folder: Path, every: int = 1, cache: Path | None = None, fold: str = URBAN_FOLD
) -> list[SoundClip]:
    """Return every ``every``-th clip of all sets from the packs in ``folder``.

    Splits are by official fold, source, speaker and song; an eighth of those to learn from is for
    validation. A Freesound source of several sets is kept on one side: if one of its clips is held
    out, those elsewhere are dropped, unless STARTED_ON has one to learn from. LEFT_OUT labels are
    in part "left out". ``cache``: file for the decoded samples, written if it does not exist.
    ``fold``: of UrbanSound8K, for testing.
    Raises UsageError if a pack is missing.
    """
    folds = {**TEST_FOLDS, "UrbanSound8K": fold}
    rows = [row for name in PACKS for row in _rows(folder, name, folds)][::every]
    waves = _waves(folder, [(r.pop("pack"), r.pop("file")) for r in rows], cache)
    learnt = {r["group"] for r in rows if r["set"] in STARTED_ON and r["part"] != "test"}
    for row in rows:
        if row["set"] not in STARTED_ON and row["part"] == "test" and row["group"] in learnt:
            row["part"] = "train"
    held_out = {r["group"] for r in rows if r["part"] == "test"}
    return [
        SoundClip(wave, **row)
        for wave, row in zip(waves, rows, strict=True)
        if row["part"] in ("test", "left out") or row["group"] not in held_out
    ]


def _rows(folder: Path, name: str, folds: dict[str, str]) -> Iterator[dict[str, Any]]:
    path = folder / f"{name}.tar"
    if not path.is_file():
        raise UsageError(
            "the training sounds are missing",
            where=path,
            hint=f"give the folder of {path.name} with --packs",
        )
    readers: dict[str, Callable[[dict[str, str]], dict[str, Any]]] = {
        "music_genre": _song,
        "env_sound": partial(_folded, folds=folds),
    }
    known = readers.get(name, _sound)
    table = "files" if name == "sound_unlabelled" else "labels"
    with tarfile.open(path) as archive:
        text = read_member(archive, f"{name}/{table}.csv").decode("utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        yield {**known(row), "pack": name, "file": row["file"]}


def _folded(row: dict[str, str], folds: dict[str, str]) -> dict[str, Any]:
    group = f"freesound {row['freesound_id']}"
    part = "test" if row["fold"] == folds[row["dataset"]] else _learning(group)
    label = row["label"].replace("_", " ")
    return {"label": label, "set": row["dataset"], "group": group, "part": part, "long": False}


def _sound(row: dict[str, str]) -> dict[str, Any]:
    name, label = row["source_set"], row.get("label", "").replace("_", " ")
    source = row.get("source_id", row.get("name", ""))
    freesound = source.isdigit() and name in ("ESC-50", "Kitchen20")
    by_source = name in _BY_SOURCE or not label
    kind = "freesound" if freesound else name
    group = f"{kind} {source if freesound or by_source else row['fold_or_speaker']}"
    if name in TEST_FOLDS:
        test = row["fold_or_speaker"] == TEST_FOLDS[name]
    else:
        held = zlib.crc32(f"test {group}".encode()) % _TEST == 0
        test = held and name not in _TRAIN_ONLY and bool(label)
    part = "left out" if label in LEFT_OUT else "test" if test else _learning(group)
    return {"label": label, "set": name, "group": group, "part": part, "long": False}


def _song(row: dict[str, str]) -> dict[str, Any]:
    song = row["gtzan_id"]
    part = "test" if int(song.rpartition(".")[2]) in TEST_SONGS else _learning(song)
    long = float(row["seconds"]) >= 15
    return {"label": row["genre"], "set": "GTZAN", "group": song, "part": part, "long": long}


def _learning(group: str) -> Part:
    return "train" if zlib.crc32(group.encode()) % _VALIDATION else "validation"


def _waves(
    folder: Path, files: list[tuple[str, str]], cache: Path | None
) -> list[npt.NDArray[np.int16]]:
    """Return the samples of these files of packs."""
    if cache is None or not cache.exists():
        with ExitStack() as stack:
            packs = {n: stack.enter_context(tarfile.open(folder / f"{n}.tar")) for n in PACKS}
            waves = [_decode(read_member(packs[n], f"{n}/{file}")) for n, file in files]
        if cache is None:
            return waves
        written = cache.with_suffix(".part.npz")
        np.savez(written, samples=np.concatenate(waves), sizes=[len(w) for w in waves])
        written.replace(cache)
    with np.load(cache) as kept:
        return np.split(kept["samples"], np.cumsum(kept["sizes"])[:-1])


def _decode(data: bytes) -> npt.NDArray[np.int16]:
    parts = []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(io.BytesIO(data)) as container:
        for frame in (*container.decode(audio=0), None):
            parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    return np.concatenate(parts)
