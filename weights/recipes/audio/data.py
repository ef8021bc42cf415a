"""Reading of the audio packs: ESC-10, UrbanSound8K and excerpts of GTZAN, as 16 kHz mono."""

from __future__ import annotations

import csv
import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import numpy.typing as npt

from costream.errors import UsageError

SAMPLE_RATE_HZ = 16_000
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
        table = _bytes(archive, f"{name}/labels.csv").decode("utf-8")
        for row in csv.DictReader(io.StringIO(table)):
            known = _sound(row) if "fold" in row else _song(row)
            yield {**known, "bytes": _bytes(archive, f"{name}/{row['file']}")}


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


def _bytes(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise UsageError(f"the pack has no file {name}")
    return file.read()


def _decode(data: bytes) -> npt.NDArray[np.int16]:
    parts = []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE_HZ)
    with av.open(io.BytesIO(data)) as container:
        for frame in (*container.decode(audio=0), None):
            parts += [part.to_ndarray()[0] for part in resampler.resample(frame)]
    return np.concatenate(parts)
