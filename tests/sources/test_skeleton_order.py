"""Rows of tables in any order, several rows a frame, and what the columns of time hold."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costream.core.errors import CostreamError, SourceError
from costream.core.layouts import BODY_15, COCO_17
from costream.sources.base import SourceOptions
from costream.sources.skeletons.order import is_grouped
from costream.sources.uris import open_source
from kit.mocap_files import pixels
from kit.skeleton_files import clip, faults, frames, read, underscored, wide

COUNT = 5
NAMES = [name.replace(" ", "_") for name in COCO_17.joints]


def rows_of(x: np.ndarray, *, stamps: bool = False) -> tuple[str, list[list[str]]]:
    """Return headings and rows (time or frame, person, joint, x, y) of [T, M, V, 2]."""
    shape = itertools.product(*map(range, x.shape[:3]))
    rows = [
        [f"{t / 25:.2f}" if stamps else str(t), str(m), NAMES[k], *map(str, x[t, m, k])]
        for t, m, k in shape
    ]
    return ("time" if stamps else "frame") + ",person,joint,x,y", rows


def written(path: Path, head: str, rows: list[list[str]]) -> Path:
    path.write_text("\n".join([head, *map(",".join, rows)]) + "\n")
    return path


def wide_rows(x: np.ndarray) -> tuple[str, list[list[str]]]:
    head = "person,frame," + ",".join(f"{n}_{a}" for n in NAMES for a in "xy")
    return head, [
        [str(m), str(t), *map(str, x[t, m].ravel())]
        for t, m in itertools.product(range(len(x)), range(x.shape[1]))
    ]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations([0, 1, 2]), st.booleans(), st.booleans())
def test_a_file_may_have_its_rows_grouped_by_person_or_joint(
    tmp_path: Path, order: list[int], stamps: bool, in_wide: bool
) -> None:
    x = pixels(COCO_17, COUNT, 2)
    if in_wide:
        head, rows = wide_rows(x)
        rows.sort(key=lambda row: [int(row[k]) for k in order if k < 2])
    else:
        head, rows = rows_of(x, stamps=stamps)
        rows.sort(key=lambda row: [row[k] for k in order])
    info, items = read(written(tmp_path / "a.csv", head, rows), frame_rate_hz=25.0)
    assert faults(items) == []
    assert np.allclose(np.stack([f.joints for f in frames(items)]), x * (1, -1), atol=1e-3)
    end_s = (COUNT - 1) / 25 if stamps and not in_wide else COUNT / 25
    assert info.duration_s == pytest.approx(end_s)


def test_who_comes_later_in_the_file_is_there_from_then_on(tmp_path: Path) -> None:
    x = pixels(COCO_17, COUNT, 2)
    head, rows = rows_of(x)
    rows = [row for row in rows if row[1] == "0" or int(row[0]) > 2]
    # The first frame shows one joint only.
    rows = [row for row in rows if row[0] != "0" or row[2] == "nose"]
    _, items = read(written(tmp_path / "a.csv", head, rows), frame_rate_hz=25.0)
    there = [frame.scores.any(1).tolist() for frame in frames(items)]
    assert there == [[True, False]] * 3 + [[True, True]] * 2
    assert [int((f.scores[0] > 0).sum()) for f in frames(items)] == [1, 17, 17, 17, 17]


def test_times_that_go_back_within_a_person_are_left_out_as_before(tmp_path: Path) -> None:
    head, rows = wide_rows(pixels(COCO_17, COUNT, 2))
    path = written(tmp_path / "a.csv", head, [*rows, *rows[:4]])
    _, items = read(path, frame_rate_hz=25.0)
    assert len(frames(items)) == COUNT
    assert "4 rows out of time order, left out" in faults(items)[-1].message


def test_a_file_that_is_cut_off_is_sorted_and_reported(tmp_path: Path) -> None:
    head, rows = wide_rows(pixels(COCO_17, COUNT, 2))
    rows.sort()
    path = written(tmp_path / "a.csv", head, rows)
    path.write_text(path.read_text()[:-30])
    _, items = read(path, frame_rate_hz=25.0)
    assert [int(f.scores.any(1).sum()) for f in frames(items)] == [2, 2, 2, 2, 1]
    assert [(f.fatal, "cut off" in f.message) for f in faults(items)] == [(True, True)]


@pytest.mark.parametrize("person", ["", "track,"])
def test_several_rows_a_frame_without_ids_are_persons(tmp_path: Path, person: str) -> None:
    x = pixels(COCO_17, COUNT, 2)
    head, rows = wide_rows(x)
    head = person + head.removeprefix("person,")
    rows = [[*([""] if person else []), *row[1:]] for row in rows]
    rows.insert(3, rows[2])  # a real duplicate
    _, items = read(written(tmp_path / "a.csv", head, rows), frame_rate_hz=25.0)
    assert np.allclose(np.stack([f.joints for f in frames(items)]), x * (1, -1), atol=1e-3)
    assert ["1 duplicate row" in fault.message for fault in faults(items)] == [True]


@pytest.mark.parametrize(
    ("drop", "group", "message"),
    [
        ([1], [0], "several rows for a joint, but there is no person column.*add a column person"),
        ([0], [1], "ordered by person or joint and have no frame numbers.*column frame"),
        ([0, 1], [2], "ordered by person or joint and have no frame numbers"),
    ],
)
def test_ambiguous_columns_are_asked_for(
    tmp_path: Path, drop: list[int], group: list[int], message: str
) -> None:
    head, rows = rows_of(pixels(COCO_17, COUNT, 2))
    rows.sort(key=lambda row: [row[k] for k in group])
    kept = [k for k in range(5) if k not in drop]
    path = written(
        tmp_path / "a.csv",
        ",".join(head.split(",")[k] for k in kept),
        [[row[k] for k in kept] for row in rows],
    )
    with pytest.raises(CostreamError, match=message):
        read(path, frame_rate_hz=25.0)


def test_one_frame_of_two_persons_without_a_number_is_not_a_group(tmp_path: Path) -> None:
    head, rows = rows_of(pixels(COCO_17, 1, 2))
    path = written(tmp_path / "a.csv", head.removeprefix("frame,"), [row[1:] for row in rows])
    [frame] = frames(read(path, frame_rate_hz=25.0)[1])
    assert frame.scores.all()


@pytest.mark.long
def test_a_pipe_says_that_it_cannot_be_sorted(tmp_path: Path) -> None:
    head, rows = wide_rows(pixels(COCO_17, COUNT, 2))
    path = written(tmp_path / "a.csv", head, sorted(rows))
    code = """if True:
        import sys
        from costream.sources.base import SourceOptions
        from costream.sources.uris import open_source
        source = open_source("-", SourceOptions(frame_rate_hz=25.0))
        source.open()
        print([item.message for item in source.items() if hasattr(item, "message")])
    """

    def piped() -> str:
        with path.open() as file:
            cat = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
            command = [sys.executable, "-c", code]
            out = subprocess.run(command, stdin=cat.stdout, capture_output=True, text=True)
        return out.stdout + out.stderr

    assert "4 rows out of time order, left out (files are sorted, pipes cannot be)" in piped()
    head, rows = rows_of(pixels(COCO_17, COUNT, 1))
    written(path, head, sorted(rows, key=lambda row: row[2]))
    assert "its first frame has only one joint (left_ankle); the rows of a frame" in piped()


steps = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=30)


@given(steps)
def test_grouped_is_what_sorting_by_time_puts_right(times: list[tuple[int, int]]) -> None:
    given_ = [(float(time), who) for who, time in times]
    within = all(
        a <= b
        for who in range(4)
        for a, b in itertools.pairwise(time for time, other in given_ if other == who)
    )
    assert is_grouped(given_) == (within and given_ != sorted(given_, key=lambda pair: pair[0]))


# --- units of time ----------------------------------------------------------------------------


@pytest.mark.parametrize("rate_hz", [15, 30, 100, 200, 250, 480, 1000, 1900])
@pytest.mark.parametrize("unit", ["time_ms", "time_us", "time_ns"])
def test_a_column_without_a_unit_that_cannot_be_seconds_is_asked_about_at_any_rate(
    tmp_path: Path, rate_hz: int, unit: str
) -> None:
    scale = {"time_ms": 1e3, "time_us": 1e6, "time_ns": 1e9}[unit]
    stamps = [f"{k * scale / rate_hz:.3f}" for k in range(4)]
    path = wide(
        tmp_path / "a.csv", clip(BODY_15, 4)[:, 0], BODY_15, underscored, stamp="t", stamps=stamps
    )
    with pytest.raises(SourceError, match=r"'t' has no unit .* --columns time_ms=t"):
        read(path)
    _, items = read(path, columns=f"{unit}=t")
    assert [f.time_s for f in frames(items)] == pytest.approx(
        [k / rate_hz for k in range(4)], abs=1e-6
    )


@pytest.mark.parametrize("rate_hz", [2, 15, 250, 2000])
def test_seconds_are_seconds_also_where_the_first_frames_are_far_apart(
    tmp_path: Path, rate_hz: float
) -> None:
    stamps = ["0", *(f"{9 + k / rate_hz}" for k in range(5))]
    path = wide(
        tmp_path / "a.csv", clip(BODY_15, 6)[:, 0], BODY_15, underscored, stamp="t", stamps=stamps
    )
    assert [f.time_s for f in frames(read(path)[1])] == pytest.approx([float(s) for s in stamps])


def test_frame_numbers_in_a_column_of_time_are_asked_about(tmp_path: Path) -> None:
    stamps = list(map(str, range(4)))
    path = wide(
        tmp_path / "a.csv", clip(BODY_15, 4)[:, 0], BODY_15, underscored, stamp="t", stamps=stamps
    )
    with pytest.raises(SourceError, match=r"increases by 1 .* or frame, with --fps"):
        read(path)
    _, items = read(path, columns="frame=t", frame_rate_hz=30.0)
    assert [f.time_s for f in frames(items)] == pytest.approx([0, 1 / 30, 2 / 30, 0.1])


def test_frames_that_are_far_apart_are_reported(tmp_path: Path) -> None:
    stamps = ["0", "33", "67", "100"]
    path = wide(
        tmp_path / "a.csv",
        clip(BODY_15, 4)[:, 0],
        BODY_15,
        underscored,
        stamp="frame",
        stamps=stamps,
    )
    source = open_source(str(path), SourceOptions(frame_rate_hz=30.0))
    assert source.open().assumed == (
        "frames are 1.1 s apart, as 'frame' counts by 33 and --fps is 30",
    )
    source.close()
    source = open_source(str(path), SourceOptions(frame_rate_hz=100.0))
    assert source.open().assumed == ()
    source.close()
