"""Damaged skeletons: one clear line or what can be read, and never anything else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costream.core.errors import CostreamError, SourceError
from costream.core.layouts import COCO_17
from kit.skeleton_files import SKELETONS, clip, faults, frames, long, read

SCRAPS = (b",", b"\n", b"-", b'"', b"nan", b"1e999", b"{", b"]", b";", b"\0", b"9" * 30, b"#", b" ")


def damaged(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        k, kind = chance.randrange(len(out)), chance.randrange(5)
        if kind == 0:
            out[k] = chance.randrange(256)
        elif kind == 1:
            del out[k : k + chance.choice((1, 3, 50))]
        elif kind == 2:
            out[k:k] = chance.choice(SCRAPS)
        elif kind == 3:
            out[k:k] = out[max(0, k - 30) : k]
        else:
            del out[k + 1 :]
        out = out or bytearray(b"x")
    return bytes(out)


@pytest.mark.long
@pytest.mark.parametrize("name", ["wide csv", "long csv", "ntu", "kinetics", "pyskl"])
def test_damage_anywhere(tmp_path: Path, name: str) -> None:
    path = SKELETONS[name](tmp_path, 4)
    data, chance = path.read_bytes(), random.Random(name)
    read_well = 0
    for _ in range(150):
        path.write_bytes(damaged(data, chance))
        try:
            _, items = read(path, frame_rate_hz=10.0)
        except CostreamError as error:
            assert "\n" not in str(error)  # noqa: PT017  (either end is right)
            continue
        times = [frame.time_s for frame in frames(items)]
        assert times == sorted(set(times))
        for frame in frames(items):
            assert np.isfinite(frame.joints).all()
            assert not frame.joints[frame.scores == 0].any()
        read_well += bool(times)
    assert read_well > 5


# --- tables ---------------------------------------------------------------------------------


def written(tmp_path: Path) -> tuple[Path, list[str]]:
    path = SKELETONS["wide csv"](tmp_path, 8)
    return path, path.read_text().strip().split("\n")


def malformed(rows: list[str]) -> list[str]:
    return [*rows[:3], "nonsense", f"{rows[4]},1", rows[5], rows[6].replace(".", "x"), *rows[7:]]


def malformed_without_times(rows: list[str]) -> list[str]:
    return [row.split(",", 1)[-1] for row in [*rows[:3], "nonsense", *rows[4:]]]


def decimal_commas(rows: list[str]) -> list[str]:
    return [rows[0], *(row.replace(".", ",") for row in rows[1:])]


def swapped(rows: list[str]) -> list[str]:
    return [*rows[:3], rows[5], rows[4], rows[3], rows[6], rows[6], *rows[8:]]


@pytest.mark.parametrize(
    ("change", "times", "errors", "message"),
    [
        (malformed, [0, 0.1, 0.4, 0.6, 0.7], 3, "2 malformed rows"),
        (malformed_without_times, [0, 0.1, 0.3, 0.4, 0.5, 0.6, 0.7], 1, "1 malformed row,"),
        (decimal_commas, [], 8, "8 rows with decimal commas and commas as delimiters"),
        (swapped, [0, 0.1, 0.4, 0.5, 0.7], 3, "out of time order"),
    ],
)
def test_bad_rows_are_left_out_and_counted(
    tmp_path: Path, change: Any, times: list[float], errors: int, message: str
) -> None:
    path, lines = written(tmp_path)
    path.write_text("\n".join(change(lines)) + "\n")
    _, items = read(path, frame_rate_hz=10.0)
    assert [f.time_s for f in frames(items)] == pytest.approx(times)
    assert sum(fault.count for fault in faults(items)) == errors
    assert not any(fault.fatal for fault in faults(items))
    assert message in faults(items)[0].message


def test_a_row_of_a_joint_that_comes_twice(tmp_path: Path) -> None:
    x = clip(COCO_17, 3)
    path = long(tmp_path / "a.csv", x, COCO_17.joints, "frame,person,joint,x,y,z")
    lines = path.read_text().split("\n")
    lines.insert(20, lines[19])
    path.write_text("\n".join(lines))
    _, items = read(path, frame_rate_hz=10.0)
    assert np.array_equal(np.stack([f.joints[0] for f in frames(items)]), x[:, 0])
    assert ["duplicate" in fault.message for fault in faults(items)] == [True]


def test_cut_off(tmp_path: Path) -> None:
    path, lines = written(tmp_path)
    text = "\n".join(lines)
    path.write_text(text[: -len(lines[-1]) // 2])
    _, items = read(path, frame_rate_hz=10.0)
    assert len(frames(items)) == 7
    assert [(f.fatal, "cut off" in f.message) for f in faults(items)] == [(True, True)]
    # No end of line after the last row is nothing.
    path.write_text(text)
    _, items = read(path, frame_rate_hz=10.0)
    assert (len(frames(items)), faults(items)) == (8, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "this table is empty"),
        (b"frame,hips_x,hips_y,hips_z\n", "headings but no rows"),
        (
            b"name,age,town,job\nA,3,B,C\n",
            r"no joints in its columns \(name, age, town, job\); .*--columns",
        ),
        (b"frame,hips_x,hips_z,neck_x\n1,2,3,4\n", "no columns for y"),
        ("frame,hips_x\n".encode("utf-16"), "this is not UTF-8 text"),
        (b"frame,0_x,0_y,9_x,9_y\n0,1,1,1,1\n", "numbered from 0 to 9 with gaps"),
    ],
)
def test_not_a_table_of_joints(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        read(tmp_path / "a.csv", frame_rate_hz=30.0)
    assert "a.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
