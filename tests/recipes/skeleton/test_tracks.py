"""Joints of persons in films, which networks of joints learn from."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

import costream
from costream.core.records import Header, Picture, Record, Summary
from kit.data_packs import packs as needed
from weights.recipes.skeleton.tracks import write_tracks

FILM = "samples/video/classroom-preview.mp4"  # 480x270, smaller than the box of the models


class Persons:
    """Keeps the joints that a run shows to its sinks."""

    def __init__(self) -> None:
        self.shown: list[Picture] = []

    def open(self, header: Header) -> None:
        """Begin."""

    def write(self, record: Record) -> None:
        """Take no records."""

    def draw(self, picture: Picture) -> None:
        """Keep a picture."""
        self.shown.append(picture)

    def close(self, summary: Summary) -> None:
        """End."""


@pytest.mark.slow
def test_joints_that_are_learnt_from_are_those_that_detect_finds(tmp_path: Path) -> None:
    with tarfile.open(needed("samples.tar") / "samples.tar") as archive:
        archive.extract(FILM, tmp_path, filter="data")
    film, path, persons = tmp_path / FILM, tmp_path / "joints.npz", Persons()
    write_tracks(film, path)
    for _ in costream.detect(str(film), "costgcn-2d", sinks=[persons]):
        pass
    with np.load(path) as stored:
        frames, numbers, places, size = (
            stored[key] for key in ("frame", "number", "places", "size")
        )
        times = stored["time_s"]
    assert times == pytest.approx([picture.time_s for picture in persons.shown])
    found = 0
    for step, picture in enumerate(persons.shown):
        assert picture.skeleton is not None
        slots = np.flatnonzero(picture.skeleton.scores.any(1))
        learnt = frames == step
        assert len(slots) == learnt.sum()
        expected = places[learnt] * np.array((size[0] / size[1], -1), np.float32)
        np.testing.assert_allclose(picture.skeleton.joints[slots], expected, atol=1e-6)
        found += len(slots)
    assert found > 100
    assert set(numbers) == set(range(1, len(set(numbers)) + 1))
