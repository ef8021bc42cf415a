"""Feature files: which rows, in which order, at which times."""

from __future__ import annotations

import pickle
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.core.errors import SourceError, UsageError
from costream.core.records import Fault, FeatureRow, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.features import feature_arrays
from costream.sources.features.feature_arrays import load_features
from costream.sources.features.feature_source import FeatureSource
from kit.reading import contents

RGB = np.arange(24, dtype=np.float32).reshape(6, 4)
FLOW = -np.arange(12, dtype=np.float32).reshape(6, 2)
AUDIO = np.full((6, 3), 0.5)


def source(path: Path | str, rate_hz: float | None = 4.0, **options: float) -> FeatureSource:
    return FeatureSource(str(path), SourceOptions(rate_hz=rate_hz, **options))  # type: ignore[arg-type]


def read(path: Path | str, **options: float) -> tuple[SourceInfo, list[FeatureRow], list[Fault]]:
    made = contents(source(path, **options))
    return made.info, made.of(FeatureRow), made.faults


def values(path: Path | str) -> np.ndarray:
    _, rows, faults = read(path)
    assert faults == []
    return np.stack([row.values for row in rows])


# --- layouts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i2", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy(dtype: str, order: str, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asarray(RGB, dtype, order=order))  # type: ignore[call-overload]
    info, rows, _ = read(tmp_path / "x.npy")
    assert info == SourceInfo("x.npy", str(tmp_path / "x.npy"), "features", 1.5, 4.0, width=4)
    assert [r.i for r in rows] == list(range(6))
    assert [r.time_s for r in rows] == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert np.array_equal(np.stack([r.values for r in rows]), RGB)
    assert all(r.values.dtype == np.float32 for r in rows)


def test_npy_is_mapped_not_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RGB)
    features = load_features(str(tmp_path / "x.npy"))
    assert isinstance(features.parts[0], np.memmap)
    row = features.row(0)
    assert row.base is None  # rows given out do not keep the file


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ({"audio": AUDIO, "flow": FLOW, "rgb": RGB, "other": np.zeros(3)}, [RGB, FLOW, AUDIO]),
        ({"flow": FLOW, "rgb": RGB}, [RGB, FLOW]),
        ({"anything": RGB}, [RGB]),
        ({"features": RGB, "labels": np.zeros(6)}, [RGB]),
        ({"rgb": RGB, "flow": FLOW[:4]}, [RGB[:4], FLOW[:4]]),  # TVSeries: the shortest counts
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_parts_in_their_order(
    save: Any, parts: dict[str, np.ndarray], wanted: list[np.ndarray], tmp_path: Path
) -> None:
    save(tmp_path / "x.npz", **parts)
    assert np.array_equal(values(tmp_path / "x.npz"), np.hstack(wanted))


def test_parts_together(tmp_path: Path) -> None:
    np.save(tmp_path / "v1_rgb.npy", RGB)
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), RGB)
    np.save(tmp_path / "v1_flow.npy", FLOW)
    np.save(tmp_path / "v2_audio.npy", AUDIO)  # of another video
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), np.hstack([RGB, FLOW]))
    np.save(tmp_path / "v1_audio.npy", AUDIO)
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), np.hstack([RGB, FLOW, AUDIO]))
    assert np.array_equal(values(tmp_path / "v1_flow.npy"), FLOW)


def test_pickle_of_videos(tmp_path: Path) -> None:
    path = tmp_path / "thumos.pickle"
    one, two = {"rgb": RGB, "flow": FLOW}, {"audio": AUDIO, "flow": FLOW, "rgb": RGB}
    path.write_bytes(pickle.dumps({"video_test_1": one, "video_test_2": two}, 2))
    info, rows, _ = read(f"{path}#video_test_1")
    assert info.name == "thumos.pickle#video_test_1"
    assert np.array_equal([r.values for r in rows], np.hstack([RGB, FLOW]))
    assert np.array_equal(values(f"{path}#video_test_2"), np.hstack([RGB, FLOW, AUDIO]))
    with pytest.raises(SourceError, match=r"no video 'video_test_3' in it; did you mean"):
        read(f"{path}#video_test_3")
    with pytest.raises(SourceError, match="selects a video"):
        read(path)


@pytest.mark.parametrize(
    ("content", "part", "wanted"),
    [
        ({"only": {"rgb": RGB}}, "", RGB),
        ({"rgb": RGB, "flow": FLOW}, "", np.hstack([RGB, FLOW])),
        (RGB, "", RGB),
        ({"v": RGB, "w": FLOW}, "#w", FLOW),
    ],
)
def test_pickle_of_one_video(content: Any, part: str, wanted: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content))
    assert np.array_equal(values(f"{tmp_path / 'a.pkl'}{part}"), wanted)


def test_output_names_are_file_names(tmp_path: Path) -> None:
    path = tmp_path / "tv#series.pkl"
    path.write_bytes(pickle.dumps({"../24/ep:1#x": {"rgb": RGB}, "b": {"rgb": RGB}}))
    assert read(f"{path}#../24/ep:1#x")[0].name == "tv#series.pkl#.._24_ep_1#x"


# --- lengths ----------------------------------------------------------------------------------


def test_parts_of_very_different_length(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", rgb=RGB, flow=FLOW[:2])
    _, rows, faults = read(tmp_path / "x.npz")
    assert len(rows) == 2
    assert [f.fatal for f in faults] == [False]
    assert "(6, 2 rows)" in faults[0].message


def test_cut_off_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RGB)
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-20])
    _, rows, faults = read(tmp_path / "x.npy")
    assert np.array_equal([r.values for r in rows], RGB[:4])
    assert [(f.time_s, f.fatal) for f in faults] == [(1.0, True)]
    _, rows, faults = read(tmp_path / "x.npy", end_s=0.5)
    assert (len(rows), [f.fatal for f in faults]) == (2, [False])


# --- time -------------------------------------------------------------------------------------


def test_start_and_end(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RGB)
    _, rows, _ = read(tmp_path / "x.npy", start_s=0.5, end_s=1.0)
    assert [(r.i, r.time_s) for r in rows] == [(2, 0.5), (3, 0.75)]
    _, rows, _ = read(tmp_path / "x.npy", start_s=0.51)
    assert rows[0].i == 3
    _, rows, _ = read(tmp_path / "x.npy", start_s=99.0)
    assert rows == []


@given(st.integers(0, 200), st.integers(1, 200), st.sampled_from([4.0, 10.0, 23.976, 29.97, 30.0]))
def test_row_times_are_found_again(first: int, count: int, rate: float) -> None:
    """A start that was printed as the time of a row begins with that row."""
    made = source("x", rate, start_s=first / rate, end_s=(first + count) / rate)
    made._rate_hz = rate  # as after open
    assert made._range(1000) == (first, first + count)


@pytest.mark.parametrize("rate", [None, 0.0, -4.0, float("nan"), float("inf")])
def test_the_rate_is_never_guessed(rate: float | None, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RGB)
    with pytest.raises(UsageError, match="feature rows have no times; give their rate"):
        source(tmp_path / "x.npy", rate).open()


# --- values and contents that do not fit ------------------------------------------------------


def test_rows_that_are_not_numbers_are_left_out_and_reported(tmp_path: Path) -> None:
    bad = RGB.astype("f8")
    bad[1, 2], bad[2, 0], bad[4, 1] = np.nan, np.inf, 1e300
    np.save(tmp_path / "x.npy", bad)
    _, rows, faults = read(tmp_path / "x.npy")
    assert [row.i for row in rows] == [0, 3, 5]
    assert [(f.time_s, f.count, f.fatal) for f in faults] == [(0.25, 2, False), (1.0, 1, False)]
    assert "NaN" in faults[0].message
    assert contents(source(tmp_path / "x.npy")).errors == 3
    np.save(tmp_path / "x.npy", np.full((1000, 4), np.nan))
    _, rows, faults = read(tmp_path / "x.npy")
    assert (rows, [f.count for f in faults]) == ([], [1000])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5), "shape (5,)"),
        (np.zeros((2, 3, 4)), "shape (2, 3, 4)"),
        (np.zeros((0, 4)), "shape (0, 4)"),
        (np.zeros((4, 0)), "shape (4, 0)"),
        (np.zeros((2, 2), "c8"), "not an array of numbers"),
        (np.array([["a"]]), "not an array of numbers"),
        (np.array([[{}]], dtype=object), ""),  # a pickle inside, which would be run
    ],
)
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_arrays_that_are_not_rows(
    array: np.ndarray, message: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x.{ending}"
    np.save(path, array) if ending == "npy" else np.savez(path, features=array)
    with pytest.raises(SourceError) as caught:
        read(path)
    assert message in str(caught.value)


def test_npz_of_a_later_version(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, features=RGB)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 6] = 139
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"zip file version 13\.9"):
        read(path)


def test_npz_without_features(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{f"array_{k}": RGB for k in range(6)})
    with pytest.raises(SourceError, match=r"no features found \(it contains array_0.*, \.\.\.\)"):
        read(tmp_path / "x.npz")


@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_damaged(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    np.save(path, RGB) if name == "x.npy" else np.savez(path, rgb=RGB)
    data = path.read_bytes()
    for size in (8, 20, len(data) // 3):
        path.write_bytes(data[:size])
        with pytest.raises(SourceError) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_arrays_that_promise_too_much_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_arrays, "LARGE_BYTES", 1_000_000)  # which is a gigabyte
    for shape in ("(-3, 9)", "(((", "(3, 1" + "0" * 400 + ")"):
        head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
        start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
        (tmp_path / "x.npy").write_bytes(start + head + bytes(999))
        with pytest.raises(SourceError, match="cannot be read"):
            read(tmp_path / "x.npy")
    np.savez_compressed(tmp_path / "x.npz", rgb=np.zeros((3000, 1000), np.float32))
    with pytest.raises(SourceError, match=r"it expands from 0\.0 to 12 MB"):
        read(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "y.npz", rgb=RGB)
    flipped = bytearray((tmp_path / "y.npz").read_bytes())
    for at in range(60, len(flipped) - 60):
        flipped[at] ^= 1
        (tmp_path / "y.npz").write_bytes(flipped)
        with suppress(SourceError):
            read(tmp_path / "y.npz")
        flipped[at] ^= 1


# --- stored times -----------------------------------------------------------------------------


TIMES = np.array([10.0, 10.25, 10.5, 14.0, 14.25, 14.5])


def test_stored_times_are_those_of_the_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=RGB, times=TIMES, rate_hz=4.0)
    for rate in (None, 8.0):  # the rate of steps is another matter
        made = contents(source(tmp_path / "x.npz", rate))
        assert [row.time_s for row in made.of(FeatureRow)] == TIMES.tolist()
        assert made.info.rate_hz == 4.0
        assert made.info.duration_s == 14.75
    _, rows, _ = read(tmp_path / "x.npz", start_s=10.25, end_s=14.25)
    assert [row.i for row in rows] == [1, 2, 3]


def test_a_stored_rate_holds_unless_another_is_asked_for(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=RGB, rate_hz=2.0)
    assert read(tmp_path / "x.npz")[1][-1].time_s == 2.5
    assert read(tmp_path / "x.npz", frame_rate_hz=4.0)[1][-1].time_s == 1.25


@pytest.mark.parametrize("times", [TIMES[:5], TIMES[::-1], np.full(6, np.nan), TIMES.astype(str)])
def test_times_that_do_not_fit_the_rows(times: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", features=RGB, times=times)
    with pytest.raises(SourceError, match="times are not 6 ascending numbers"):
        source(tmp_path / "x.npz").open()


def test_a_header_of_python_2_is_read_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "old.npy"
    np.save(path, np.ones((5, 8), np.float32))
    path.write_bytes(path.read_bytes().replace(b"(5, 8), }  ", b"(5L, 8L), }"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert contents(FeatureSource(str(path), SourceOptions(rate_hz=1.0))).info.width == 8
