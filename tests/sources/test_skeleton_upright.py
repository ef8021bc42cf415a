"""Which way is up: recognised from heads and feet, turned or told with the option to give."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from costream.core.layouts import BODY_15, BODY_25, COCO_17, MEDIAPIPE_33, OPENPOSE_18, Layout
from costream.core.records import Fault, SkeletonFrame
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from costream.sources.values import make_converter
from kit.mocap_files import (
    alphapose,
    as_layout,
    deeplabcut_table,
    mediapipe,
    mmpose,
    pixels,
    saved,
    standing,
)
from kit.skeleton_files import (
    faults,
    frames,
    kinetics,
    long,
    openpose,
    pyskl,
    read,
    underscored,
    wide,
)

COUNT = 12


def _deeplabcut(path: Path, x: np.ndarray) -> Path:
    likely = np.concatenate([x, np.full((*x.shape[:-1], 1), 0.9)], -1)
    deeplabcut_table(likely, COCO_17.joints, False).to_csv(path)
    return path


def _array(path: Path, x: np.ndarray) -> Path:
    np.save(path, x)
    return path


# Writers of [T, M, V, 2] in pixels.
PICTURES: dict[str, tuple[Layout, Callable[[Path, np.ndarray], Path]]] = {
    "wide": (COCO_17, lambda f, x: wide(f / "a.csv", x[:, 0], COCO_17, underscored)),
    "wide with scores": (
        COCO_17,
        lambda f, x: wide(
            f / "a.csv", x[:, 0], COCO_17, underscored, scores=np.full(x.shape[:3], 0.9)[:, 0]
        ),
    ),
    "long": (COCO_17, lambda f, x: long(f / "a.csv", x, COCO_17.joints, "frame,person,joint,x,y")),
    "mmpose": (COCO_17, lambda f, x: saved(f / "a.json", mmpose(x, COCO_17.joints))),
    "alphapose": (COCO_17, lambda f, x: saved(f / "a.json", alphapose(x))),
    "openpose": (BODY_25, lambda f, x: openpose(f / "keypoints", x)),
    "kinetics": (OPENPOSE_18, lambda f, x: kinetics(f / "a.json", x / 1000)),
    "pyskl": (COCO_17, lambda f, x: pyskl(f / "a.pkl", x)),
    "array": (COCO_17, lambda f, x: _array(f / "a.npy", x)),
    "deeplabcut": (COCO_17, lambda f, x: _deeplabcut(f / "a.csv", x)),
}


def opened(path: Path, **options: object) -> tuple[tuple[str, ...], np.ndarray]:
    """Return what was assumed of a recording, and its joints."""
    source = open_source(str(path), SourceOptions(frame_rate_hz=25.0, **options))  # type: ignore[arg-type]
    info = source.open()
    joints = np.stack([frame.joints[0] for frame in frames(list(source.items()))])
    source.close()
    return info.assumed, joints


def option(assumed: tuple[str, ...]) -> str:
    """Return the --columns that a line names."""
    [line] = assumed
    found = re.search(r"--columns (.*)$", line)
    assert found is not None, line
    [value] = shlex.split(found[1])
    return value


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_with_y_upwards_are_turned_and_reported_in_every_format(
    tmp_path: Path, name: str
) -> None:
    layout, write = PICTURES[name]
    known = {"layout": "coco-17"} if name == "array" else {}
    x = pixels(layout, COUNT)
    path = write(tmp_path, x)
    assumed, wanted = opened(path, **known)
    assert assumed == ()
    if path.is_dir():
        path.rename(tmp_path / "other")
    path = write(tmp_path, x * (1, -1) + (0, 1000))
    assumed, found = opened(path, **known)
    assert "heads are below feet if y points downwards" in assumed[0]
    moved = found - found.mean((0, 1)) - (wanted - wanted.mean((0, 1)))
    assert np.abs(moved).max() < 1e-3
    if name in ("openpose", "kinetics", "pyskl"):
        assert "--columns" not in assumed[0]
        return
    # What the line says gives the other answer, and it is said that it looks wrong.
    assumed, found = opened(path, columns=option(assumed), **known)
    assert (found[..., 1].mean(0)[layout.joints.index("nose")] < found[0, -1, 1]).all()
    assert assumed == ("heads are below feet: check the direction of y",)


def z_up(x: np.ndarray) -> np.ndarray:
    return np.stack([x[..., 0], -x[..., 2], x[..., 1]], -1)


def x_up(x: np.ndarray) -> np.ndarray:
    return np.stack([x[..., 1], -x[..., 0], x[..., 2]], -1)


def z_down(x: np.ndarray) -> np.ndarray:
    return np.stack([x[..., 0], x[..., 2], -x[..., 1]], -1)


def of_camera(x: np.ndarray) -> np.ndarray:
    return x * (-1, -1, 1)


SPACE: dict[str, tuple[Layout, Callable[[Path, np.ndarray], Path]]] = {
    "wide": (BODY_15, lambda f, x: wide(f / "a.csv", x[:, 0], BODY_15, underscored)),
    "wide of MediaPipe": (
        MEDIAPIPE_33,
        lambda f, x: wide(f / "a.csv", x[:, 0] * (-1, -1, 1), MEDIAPIPE_33, underscored),
    ),
    "long": (
        BODY_15,
        lambda f, x: long(f / "a.csv", x, BODY_15.joints, "frame,person,joint,x,y,z"),
    ),
    "array": (BODY_15, lambda f, x: _array(f / "a.npy", x)),
    "mediapipe": (
        MEDIAPIPE_33,
        lambda f, x: saved(f / "a.json", mediapipe(x[:, 0] * (-1, -1, 1), stamps=False)),
    ),
}


@pytest.mark.parametrize("turn", [z_up, x_up, z_down, of_camera])
@pytest.mark.parametrize("name", SPACE)
def test_space_with_another_vertical_axis_is_reported_with_what_to_give(
    tmp_path: Path, name: str, turn: Callable[[np.ndarray], np.ndarray]
) -> None:
    layout, write = SPACE[name]
    known = {"layout": "body-15"} if name == "array" else {}
    x = as_layout(standing(COUNT), layout) + np.array((0.3, 0.2, 0.1))
    assumed, wanted = opened(write(tmp_path, x), **known)
    assert assumed == ()
    assert np.allclose(wanted, x[:, 0], atol=1e-5)
    path = write(tmp_path, turn(x))
    assumed, found = opened(path, **known)
    if turn is of_camera:
        assert "y was inverted" in assumed[0]
        assert np.allclose(found, x[:, 0], atol=1e-5)
        _, found = opened(path, columns=option(assumed), **known)
        assert np.allclose(found, of_camera(x)[:, 0], atol=1e-5)
        return
    assert "bodies stand, or lie, along" in assumed[0]
    assumed, found = opened(path, columns=option(assumed), **known)
    assert assumed == ()
    assert np.allclose(found, x[:, 0], atol=1e-5)


def test_a_stand_on_the_hands_and_a_body_that_lies_turn_nothing(tmp_path: Path) -> None:
    x = pixels(COCO_17, 40)
    x[:5] = x[:5] * (1, -1) + (0, 1000)
    assumed, _ = opened(wide(tmp_path / "a.csv", x[:, 0], COCO_17, underscored))
    assert assumed == ()
    lying = x[..., ::-1]
    assumed, found = opened(wide(tmp_path / "a.csv", lying[:, 0], COCO_17, underscored))
    assert assumed == ()
    assert np.allclose(found, lying[:, 0] * (1, -1), atol=1e-3)


def test_streams_are_reported_once_and_stay_as_they_are(tmp_path: Path) -> None:
    x = pixels(COCO_17, 150)[:, 0]
    stream = make_converter(
        x[0], SourceOptions(layout="coco-17"), rate_hz=25.0, name="a", live=True
    )
    items = [item for value in x for item in stream.items(value, None)]
    [told] = [item for item in items if isinstance(item, Fault)]
    assert told.message.startswith("heads are below feet: y points up here")
    assert (told.count, told.fatal) == (0, False)
    joints = np.stack([item.joints[0] for item in items if isinstance(item, SkeletonFrame)])
    assert np.allclose(joints, x)

    path = wide(tmp_path / "a.csv", x * (1, -1), COCO_17, underscored)
    with path.open("rb") as file:
        from costream.sources.skeletons.skeleton_source import SkeletonSource

        head = path.read_bytes()[:100]
        source = SkeletonSource("-", SourceOptions(frame_rate_hz=25.0), file=file, head=head)
        assert source.open().assumed == ()
        [told] = faults(list(source.items()))
        assert told.message.endswith("if y points the other way, use --columns 'x={}_x,y=-{}_y'")


def test_upper_bodies_are_judged_and_a_face_is_not(tmp_path: Path) -> None:
    x = pixels(COCO_17, COUNT)[:, 0] * (1, -1) + (0, 1000)
    for count, seen in ((13, True), (5, False)):
        part = x.copy()
        part[:, count:] = np.nan
        assumed, _ = opened(wide(tmp_path / "a.csv", part, COCO_17, underscored))
        assert bool(assumed) is seen


def test_damage_in_the_first_frames_is_reported_as_before(tmp_path: Path) -> None:
    path = wide(tmp_path / "a.csv", pixels(COCO_17, 9)[:, 0], COCO_17, underscored)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:4], "nonsense", *lines[4:]]))
    _, items = read(path, frame_rate_hz=25.0)
    assert len(frames(items)) == 9
    assert "1 malformed row" in faults(items)[0].message
