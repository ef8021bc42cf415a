"""Search by example: the order of matches, labels of results, rows kept next to recordings."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from costream.core.errors import ExitCode, SourceError, UsageError
from costream.options.options import Options
from costream.runtime.features import FeatureTokens
from costream.runtime.find import find
from kit.paths import SAMPLES
from kit.runs import run

# Two colours a side; the features of ``tokens`` are the mean colours of the halves.
PICTURES = {
    "red.png": ((200, 20, 20), (200, 20, 20)),
    "pink.png": ((220, 90, 90), (200, 20, 20)),
    "blue.png": ((20, 20, 200), (20, 20, 200)),
}


def picture(path: Path, halves: tuple[tuple[int, int, int], tuple[int, int, int]]) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, :32], pixels[:, 32:] = halves
    with av.open(str(path), "w", format="image2") as container:
        stream = container.add_stream("png", rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "rgb24"
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "all").mkdir()
    for name, halves in PICTURES.items():
        picture(tmp_path / "all" / name, halves)
    picture(tmp_path / "asked.png", ((210, 30, 30), (205, 25, 25)))
    return tmp_path / "all"


def search(*places: str, count: int = 10, **options: Any) -> Any:
    cached = options.pop("cached", True)
    named = {"model": "encoder", "sources": places, **options}
    return find("asked.png", Options(**named), count, cached=cached)


@pytest.mark.slow
def test_the_most_similar_picture_is_first_and_the_example_is_left_out(folder: Path) -> None:
    (folder / "note.txt").write_text("not a picture")
    found = search("all", "asked.png")
    names = [os.path.basename(match.file) for match in found.matches]
    assert sorted(names) == sorted(PICTURES)
    assert names[-1] == "blue.png"
    assert found.exit_code == ExitCode.OK
    similarities = [match.similarity for match in found.matches]
    assert similarities == sorted(similarities, reverse=True)
    assert len(search("all", count=1).matches) == 1


@pytest.mark.slow
def test_rows_are_kept_and_computed_again_for_another_picture(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = search("all").matches
    kept = sorted((folder / ".costream" / "features").iterdir())
    assert [file.name.split(".")[0] for file in kept] == ["blue", "pink", "red"]
    read: list[str] = []

    def counted(uri: str, *_: Any) -> FeatureTokens:
        read.append(os.path.basename(uri))
        return FeatureTokens(np.ones((1, 1280), np.float32), np.zeros(1), True)

    monkeypatch.setattr("costream.runtime.find.read_features", counted)
    again = search("all").matches
    assert read == ["asked.png"]
    assert [m.file for m in again] != []
    assert len(again) == len(first)
    picture(folder / "blue.png", PICTURES["red.png"])
    kept[2].write_bytes(b"damaged")
    search("all")
    assert read[1:] == ["asked.png", "blue.png", "red.png"]
    search("all", cached=False)
    assert len(read) == 8


@pytest.mark.long
def test_results_name_the_labels_at_that_time(folder: Path) -> None:
    given = ("-m", "cooadtr", "-o", "out", "-f", "jsonl", "--end", "8")
    run("detect", SAMPLES / "room.mp4", *given, cwd=folder.parent)
    found = search("out", "all")
    times = {m.time_s: m.labels for m in found.matches if m.file.endswith("room.mp4")}
    assert ("walk",) in times.values()


def test_what_cannot_be_searched(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no features"):
        search("all", model="nanodet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="there is no video here"):
        search("empty")


@pytest.mark.slow
def test_the_command_prints_a_table_or_json(folder: Path) -> None:
    table = run("find", "asked.png", "all", "-n", "2", cwd=folder.parent)
    assert table.stdout.splitlines()[0].split() == ["similarity", "time", "file"]
    assert len(table.stdout.splitlines()) == 3
    found = json.loads(run("find", "asked.png", "all", "--json", cwd=folder.parent).stdout)
    assert found[0].keys() == {"file", "time_s", "similarity", "labels"}
    run("find", "nosuch.png", "all", cwd=folder.parent, code=4)
