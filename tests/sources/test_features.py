"""Feature files: which rows, in which order, at which times."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costream.errors import SourceError, UsageError
from costream.records import Fault, FeatureRow, SourceInfo
from costream.sources.base import SourceOptions
from costream.sources.features.arrays import load_features
from costream.sources.features.source import FeatureSource

RGB = np.arange(24, dtype=np.float32).reshape(6, 4)
FLOW = -np.arange(12, dtype=np.float32).reshape(6, 2)
AUDIO = np.full((6, 3), 0.5)


def read(
    path: Path | str, rate_hz: float = 4.0, **options: float
) -> tuple[SourceInfo, list[FeatureRow], list[Fault]]:
    source = FeatureSource(str(path), SourceOptions(rate_hz=rate_hz, **options))  # type: ignore[arg-type]
    try:
        info = source.open()
        items = list(source.items())
    finally:
        source.close()
    rows = [item for item in items if isinstance(item, FeatureRow)]
    return info, rows, [item for item in items if isinstance(item, Fault)]


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


def test_npz_parts_in_their_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", audio=AUDIO, flow=FLOW, rgb=RGB, other=np.zeros(3))
    assert np.array_equal(values(tmp_path / "x.npz"), np.hstack([RGB, FLOW, AUDIO]))
    np.savez(tmp_path / "y.npz", flow=FLOW, rgb=RGB)
    assert np.array_equal(values(tmp_path / "y.npz"), np.hstack([RGB, FLOW]))
    np.savez_compressed(tmp_path / "z.npz", anything=RGB)
    assert np.array_equal(values(tmp_path / "z.npz"), RGB)
    np.savez(tmp_path / "f.npz", features=RGB, labels=np.zeros(6))
    assert np.array_equal(values(tmp_path / "f.npz"), RGB)


def test_parts_beside_each_other(tmp_path: Path) -> None:
    np.save(tmp_path / "v1_rgb.npy", RGB)
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), RGB)
    np.save(tmp_path / "v1_flow.npy", FLOW)
    np.save(tmp_path / "v2_audio.npy", AUDIO)  # of another video
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), np.hstack([RGB, FLOW]))
    np.save(tmp_path / "v1_audio.npy", AUDIO)
    assert np.array_equal(values(tmp_path / "v1_rgb.npy"), np.hstack([RGB, FLOW, AUDIO]))
    assert np.array_equal(values(tmp_path / "v1_flow.npy"), FLOW)


def thumos(path: Path, **videos: dict[str, np.ndarray]) -> Path:
    path.write_bytes(pickle.dumps(videos, 2))
    return path


def test_pickle_of_videos(tmp_path: Path) -> None:
    path = thumos(
        tmp_path / "thumos.pickle",
        video_test_1={"rgb": RGB, "flow": FLOW},
        video_test_2={"audio": AUDIO, "flow": FLOW, "rgb": RGB},
    )
    info, rows, _ = read(f"{path}#video_test_1")
    assert info.name == "thumos.pickle#video_test_1"
    assert np.array_equal([r.values for r in rows], np.hstack([RGB, FLOW]))
    assert np.array_equal(values(f"{path}#video_test_2"), np.hstack([RGB, FLOW, AUDIO]))
    with pytest.raises(SourceError, match=r"no video 'video_test_3' in it; did you mean"):
        read(f"{path}#video_test_3")
    with pytest.raises(SourceError, match="selects a video"):
        read(path)


def test_pickle_of_one_video(tmp_path: Path) -> None:
    assert np.array_equal(values(thumos(tmp_path / "a.pkl", only={"rgb": RGB})), RGB)
    (tmp_path / "b.pkl").write_bytes(pickle.dumps({"rgb": RGB, "flow": FLOW}))
    assert np.array_equal(values(tmp_path / "b.pkl"), np.hstack([RGB, FLOW]))
    (tmp_path / "c.pkl").write_bytes(pickle.dumps(RGB))
    assert np.array_equal(values(tmp_path / "c.pkl"), RGB)
    (tmp_path / "d.pkl").write_bytes(pickle.dumps({"v": RGB, "w": FLOW}))
    assert np.array_equal(values(f"{tmp_path / 'd.pkl'}#w"), FLOW)


def test_output_names_are_file_names(tmp_path: Path) -> None:
    path = tmp_path / "tv#series.pkl"
    path.write_bytes(pickle.dumps({"../24/ep:1#x": {"rgb": RGB}, "b": {"rgb": RGB}}))
    info, _, _ = read(f"{path}#../24/ep:1#x")
    assert info.name == "tv#series.pkl#.._24_ep_1#x"


# --- lengths ----------------------------------------------------------------------------------


def test_parts_of_slightly_different_length(tmp_path: Path) -> None:
    """TVSeries: the shortest counts."""
    np.savez(tmp_path / "x.npz", rgb=RGB, flow=FLOW[:4])
    assert np.array_equal(values(tmp_path / "x.npz"), np.hstack([RGB[:4], FLOW[:4]]))


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
    source = FeatureSource("x", SourceOptions(first / rate, (first + count) / rate, rate_hz=rate))
    assert source._range(1000, rate) == (first, first + count)


@pytest.mark.parametrize("rate", [None, 0.0, -4.0, float("nan"), float("inf")])
def test_the_rate_is_never_guessed(rate: float | None, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", RGB)
    with pytest.raises(UsageError, match="feature rows have no times; give their rate"):
        FeatureSource(str(tmp_path / "x.npy"), SourceOptions(rate_hz=rate)).open()


# --- values and contents that do not fit ------------------------------------------------------


def test_rows_that_are_no_numbers_are_left_out_and_told(tmp_path: Path) -> None:
    bad = RGB.astype("f8")
    bad[1, 2], bad[2, 0], bad[4, 1] = np.nan, np.inf, 1e300
    np.save(tmp_path / "x.npy", bad)
    source = FeatureSource(str(tmp_path / "x.npy"), SourceOptions(rate_hz=4.0))
    source.open()
    items = list(source.items())
    assert [i.i for i in items if isinstance(i, FeatureRow)] == [0, 3, 5]
    faults = [i for i in items if isinstance(i, Fault)]
    assert [(f.time_s, f.count, f.fatal) for f in faults] == [(0.25, 2, False), (1.0, 1, False)]
    assert "NaN" in faults[0].message
    assert source.errors == 3


def test_nothing_but_nan(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((1000, 4), np.nan))
    _, rows, faults = read(tmp_path / "x.npy")
    assert rows == []
    assert sum(f.count for f in faults) == 1000
    assert len(faults) == 1


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5), "shape (5,)"),
        (np.zeros((2, 3, 4)), "shape (2, 3, 4)"),
        (np.zeros((0, 4)), "shape (0, 4)"),
        (np.zeros((4, 0)), "shape (4, 0)"),
        (np.zeros((2, 2), "c8"), "not an array of numbers"),
        (np.array([["a"]]), "not an array of numbers"),
    ],
)
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_arrays_that_are_no_rows(
    array: np.ndarray, message: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x.{ending}"
    np.save(path, array) if ending == "npy" else np.savez(path, features=array)
    with pytest.raises(SourceError) as caught:
        read(path)
    assert message in str(caught.value)


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    """They are pickles inside, and would be run."""
    np.save(tmp_path / "x.npy", np.array([[{}]], dtype=object))
    with pytest.raises(SourceError):
        read(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", features=np.array([[{}]], dtype=object))
    with pytest.raises(SourceError):
        read(tmp_path / "x.npz")


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
