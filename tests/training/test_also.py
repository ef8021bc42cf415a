"""``costream train --also``: examples besides those of --data and --labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from costream.core.errors import UsageError
from costream.training.sequence_trainer import labelled_recordings
from kit import data_skeleton
from kit.data_training import train_settings
from kit.runs import refused


@pytest.fixture
def corrected(tmp_path: Path) -> dict[str, Path]:
    """Two recordings with timelines in a folder."""
    data, labels = tmp_path / "tuesday", tmp_path / "corrected"
    labels.mkdir()
    for k in range(2):
        data_skeleton.write_act(data / f"cam{k}.csv", data_skeleton.ACTS[0], k)
        (labels / f"cam{k}.csv").write_text(
            f"start,end,label\n0,0.4,{data_skeleton.ACTS[0]}\n", "utf-8"
        )
    return {"data": data, "labels": labels}


def test_clips_of_a_table_are_added_with_their_groups(tmp_path: Path, corrected) -> None:
    data_skeleton.write_folder(tmp_path / "clips", 1)
    act = data_skeleton.ACTS[1]
    table = tmp_path / "clips.csv"
    table.write_text(f"file,label,film\nclips/{act}/{act}0.csv,{act},first\n", "utf-8")
    settings = train_settings(tmp_path / "o.safetensors", **corrected, also=table, group="film")
    found = labelled_recordings(settings)
    assert [(Path(r.source).name, r.whole) for r in found] == [
        ("cam0.csv", True),
        ("cam1.csv", True),
        (f"{act}0.csv", False),
    ]
    assert [r.group for r in found] == [found[0].source, found[1].source, "first"]


def test_a_folder_of_classes_is_added(tmp_path: Path, corrected) -> None:
    classes = data_skeleton.write_folder(tmp_path / "clips", 1)
    settings = train_settings(tmp_path / "o.safetensors", **corrected, also=classes)
    found = labelled_recordings(settings)
    assert len(found) == 2 + len(data_skeleton.ACTS)
    with pytest.raises(UsageError, match="--group names a column"):
        labelled_recordings(
            train_settings(tmp_path / "o.safetensors", **corrected, also=classes, group="film")
        )


def test_it_applies_to_clips_and_timelines(tmp_path: Path) -> None:
    given = ("--data", tmp_path, "--labels", tmp_path, "--also", tmp_path)
    output = ("-o", tmp_path / "own.safetensors")
    line = refused(2, "applies to clips and timelines", "train", "nanodet", *given, *output)
    assert "--also" in line
