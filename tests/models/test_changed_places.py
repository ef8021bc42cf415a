"""Looks of nanodet at the places of a picture that have changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from costream.core.records import VideoFrame
from costream.models.base import StepResult
from costream.models.catalogue import load_model
from costream.nn.eventful.changed_places import FIRST, PAUSE
from costream.runtime.watch.feed_states import FeedStates
from kit.paths import WEIGHTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_grad")]
CHANGE = ">4"  # by default, such small pictures are computed completely
Picture = npt.NDArray[np.uint8]


@pytest.fixture(scope="module")
def model() -> Any:
    return load_model("nanodet", WEIGHTS / "nanodet.safetensors", device="cpu")


def still(count: int, seed: int = 0) -> list[Picture]:
    """Return noise of which a corner changes in each picture."""
    rng = np.random.default_rng(seed)
    pictures = [rng.integers(0, 256, (96, 160, 3), np.uint8)] * count
    for k in range(count):
        pictures[k] = pictures[k].copy()
        pictures[k][:16, :16] = rng.integers(0, 256, (16, 16, 3))
    return pictures


def begun(model: Any, tokens: str | None = CHANGE) -> Any:
    state = model.init_state()
    state.tokens = tokens
    return state


def steps(model: Any, pictures: list[Picture], state: Any) -> list[StepResult]:
    frames = [VideoFrame(k, k / 10, 0, p.copy) for k, p in enumerate(pictures)]
    return [model.step([frame], state) for frame in frames]


def areas(results: list[StepResult]) -> list[float]:
    return [1.0 if r.area is None or r.area[0] is None else r.area[0] for r in results]


def test_after_a_pause_only_the_places_that_changed_are_computed(model: Any) -> None:
    found = steps(model, still(FIRST + 6), begun(model))
    assert areas(found) == [1.0] * (FIRST + 2) + [4 / 240] * 4  # squares of 12 x 20
    assert all(r.macs == r.dense_macs for r in found[: FIRST + 2])
    assert all(0 < r.macs < 0.5 * r.dense_macs for r in found[FIRST + 2 :])
    state = begun(model, "100%")
    assert areas(steps(model, still(PAUSE + 6), state)) == [1.0] * (PAUSE + 6)
    assert areas(steps(model, still(PAUSE + 6), begun(model, None))) == [1.0] * (PAUSE + 6)


def test_a_picture_that_stays_costs_nothing_and_keeps_its_objects(model: Any) -> None:
    found = steps(model, still(1) * (PAUSE + 5), begun(model))
    assert [r.macs for r in found[-2:]] == [0, 0]
    assert found[-1].objects is not None
    assert found[0].objects is not None
    for box, first in zip(found[-1].objects[0], found[0].objects[0], strict=True):
        assert box.label == first.label
        assert box.score == pytest.approx(first.score, abs=1e-4)
        assert (box.x1, box.y2) == pytest.approx((first.x1, first.y2), abs=0.05)


def test_a_camera_that_moves_is_compared_ever_less(model: Any) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (64, 64, 3), np.uint8) for _ in range(8 * PAUSE)]
    compared = [k for k, r in enumerate(steps(model, pictures, begun(model))) if r.area]
    gaps = np.diff(compared)
    assert compared[0] == FIRST
    assert gaps[gaps > 1].tolist() == [2 * PAUSE + 1, 4 * PAUSE + 1]


def test_feeds_step_as_they_do_alone_and_a_restored_one_begins_with_a_complete_picture(
    model: Any,
) -> None:
    count = PAUSE + 5
    films = [still(count), still(count, 1)]
    alone = [areas(steps(model, film, begun(model))) for film in films]
    feeds, together = FeedStates(model, 3, CHANGE), [[], []]
    for k in range(count):
        frames = [VideoFrame(k, k / 10, 0, film[k].copy) for film in films]
        for row, result in enumerate(feeds.step([0, 2], frames)):
            together[row] += areas([result])
    assert together == alone
    restored = begun(model)
    restored.load_tensors(feeds.take(2).tensors())
    assert areas(steps(model, films[1][-3:], restored)) == [1.0, 1.0, 1.0]
