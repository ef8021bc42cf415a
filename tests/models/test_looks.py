"""Detectors that look where something has moved: which pictures, what holds between, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from costream.core.records import Compute, Objects, VideoFrame
from costream.models.base import Cost, Looks, StepResult
from costream.models.objects.looks import CELLS, GRID, DetectorState, brightness, moved_cells
from costream.models.objects.model import DetectorModel
from costream.options.budget import Budget, BudgetFile
from costream.options.options import Options
from costream.options.values import token_limit
from costream.runtime.budget import LookController
from costream.runtime.pipeline import run
from costream.runtime.watch.feed_states import FeedStates
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.media import make_video
from kit.paths import SAMPLES, WEIGHTS
from kit.streams import RecordSink

pytestmark = pytest.mark.usefixtures("no_grad")


@pytest.fixture
def sparing() -> Any:
    model = load("nanodet")
    model.sparing = True
    return model


def load(name: str) -> Any:
    from costream.models.catalogue import load_model

    return load_model(name, WEIGHTS / f"{name}.safetensors", device="cpu")


@pytest.fixture(scope="module")
def room() -> list[npt.NDArray[np.uint8]]:
    """Pictures of the room, 5 a second from 4 s on, in which somebody walks."""
    options = SourceOptions(box=(320, 320), start_s=4.0, end_s=8.0)
    source = open_source(str(SAMPLES / "room.mp4"), options)
    source.open()
    pictures = [item.rgb for item in source.items() if isinstance(item, VideoFrame)]
    source.close()
    return pictures[::5]


def frame(picture: npt.NDArray[np.uint8], time_s: float) -> VideoFrame:
    return VideoFrame(0, time_s, 0, picture.copy)


def steps(model: Any, pictures: Any, state: Any, begin: int = 0) -> list[StepResult]:
    return [model.step([frame(picture, k / 5)], state) for k, picture in enumerate(pictures, begin)]


def test_a_still_picture_is_looked_at_again_after_a_second(sparing: Any, room: Any) -> None:
    found = steps(sparing, [room[0]] * 12, sparing.init_state())
    assert [result.ran[0].get("nanodet") for result in found] == [
        "first", None, None, None, None, "age", None, None, None, None, "age", None,
    ]  # fmt: skip
    assert all(result.objects == found[0].objects for result in found)
    assert [result.macs > 0 for result in found[:6]] == [True, *[False] * 4, True]
    assert {result.dense_macs for result in found} == {found[0].macs}


def test_where_somebody_walks_every_picture_is_looked_at(sparing: Any, room: Any) -> None:
    found = steps(sparing, room, sparing.init_state())
    assert {result.ran[0]["nanodet"] for result in found[1:]} == {"motion"}
    every = steps(load("nanodet"), room, load("nanodet").init_state())
    assert [result.objects for result in found] == [result.objects for result in every]
    assert {result.ran for result in every} == {None}


def test_held_boxes_are_those_of_the_newest_look(sparing: Any, room: Any) -> None:
    """Of two streams, one of which stands still; and as each would be alone."""
    state = sparing.init_state(2)
    alone = [sparing.init_state() for _ in range(2)]
    for k, picture in enumerate(room[:8]):
        items = [frame(picture, k / 5), frame(room[0], k / 5)]
        both = sparing.step(items, state)
        for row, item in enumerate(items):
            one = sparing.step([item], alone[row])
            assert one.ran[0] == both.ran[row]
            assert one.macs == both.row(row).dense_macs * bool(one.ran[0])
            for mine, other in zip(one.objects[0], both.objects[row], strict=True):
                assert mine.label == other.label
                assert abs(mine.score - other.score) < 1e-4
                assert abs(mine.x1 - other.x1) < 0.1


def test_a_saved_state_goes_on_as_if_nothing_had_been(sparing: Any, room: Any) -> None:
    pictures = [room[0], room[0], room[4], room[4], room[4], room[0]]
    expected = steps(sparing, pictures, sparing.init_state())
    state = sparing.init_state()
    steps(sparing, pictures[:3], state)
    other = sparing.init_state()
    other.load_tensors({name: tensor.clone() for name, tensor in state.tensors().items()})
    found = steps(sparing, pictures[3:], other, 3)
    assert [(r.objects, r.ran) for r in found] == [(r.objects, r.ran) for r in expected[3:]]


def test_times_that_go_back_are_looked_at(sparing: Any, room: Any) -> None:
    state = sparing.init_state()
    sparing.step([frame(room[0], 9.0)], state)
    assert sparing.step([frame(room[0], 1.0)], state).ran == ({"nanodet": "age"},)


def test_people_who_are_followed_need_fewer_looks_and_one_who_is_lost_needs_one() -> None:
    """Joints on the left: motion there is known for half a second, on the right it is not."""
    looks = Looks(pause_s=0.2)
    state = DetectorState.zeros(1, looks)
    still, left, right = (torch.zeros(GRID) for _ in range(3))
    left[4:9, 4:7], right[4:9, 20:23] = 50.0, 50.0
    state.frames += 1
    state.hold(0, 0.0, still, (), {})
    why = partial(state.why_look, 0, name="nanodet")
    assert why(0.3, left) == "motion"
    looks.followed = [(0.15, 0.2, 0.2, 0.35)]
    assert why(0.3, left) is None
    assert why(0.5, left) == "motion"
    assert why(0.3, right) == "motion"
    looks.lost = True
    assert why(0.1, still) is None
    assert why(0.2, still) == "lost"
    state.hold(0, 0.2, still, (), {})
    assert why(0.5, still) is None


@given(
    size=st.tuples(st.integers(2, 90), st.integers(2, 90)),
    light=st.integers(-4, 4),
    seed=st.integers(0, 9),
)
def test_noise_and_a_little_more_light_are_no_motion(
    size: tuple[int, int], light: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    picture = rng.integers(60, 180, (*size, 3)).astype(np.uint8)
    before = brightness(picture)
    assert before.shape == GRID
    after = brightness((picture.astype(int) + light).astype(np.uint8))
    assert moved_cells(before, after) < CELLS


def test_a_small_thing_that_moves_is_motion() -> None:
    """A square of 1/16 of the width, darker than what is behind it by a third."""
    picture = np.full((240, 320, 3), 120, np.uint8)
    before = brightness(picture)
    picture[100:120, 200:220] = 80
    assert moved_cells(before, brightness(picture)) >= CELLS
    lit = moved_cells(torch.zeros(GRID), torch.full(GRID, 30.0))
    assert lit == GRID[0] * GRID[1]  # the light is switched on


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_video(tmp_path_factory.mktemp("clips") / "clip.mp4", 25, rate=10)


@pytest.fixture(scope="module")
def small() -> DetectorModel:
    """The detector with small pictures."""
    model = load("nanodet")
    assert isinstance(model, DetectorModel)
    return model


def costs(clip: Path, budget: Budget | BudgetFile | None, model: Any) -> list[Compute]:
    sink = RecordSink()
    source = open_source(str(clip), SourceOptions(box=model.info.box))
    run(source, model, [sink], options=Options(budget=budget, tokens=token_limit("all")))
    assert len(sink.of(Objects)) == len(sink.of(Compute))
    return sink.of(Compute)


def test_a_budget_of_operations_is_kept_on_average(clip: Path, small: DetectorModel) -> None:
    every = costs(clip, None, small)
    assert {cost.ran for cost in every} == {None}
    look = every[0].macs
    found = costs(clip, Budget.parse(f"{0.4 * look / 1e6}MMAC"), small)
    assert np.mean([cost.macs for cost in found[1:]]) == pytest.approx(0.4 * look, rel=0.1)
    assert {cost.macs for cost in found} == {0, look}
    assert found[5].budget_macs == pytest.approx(0.4 * look)
    assert found[0].ran == {found_name(small): "first"}


def found_name(model: DetectorModel) -> str:
    return model.info.card.name


@given(
    budget=st.floats(1, 80),
    look=st.floats(20, 200),
    rest=st.floats(0, 0.9),
    moves=st.lists(st.booleans(), min_size=50, max_size=200),
)
def test_the_account_is_never_overdrawn_by_more_than_a_look(
    budget: float, look: float, rest: float, moves: list[bool]
) -> None:
    controller = LookController(Budget.parse(f"{budget}ms"), 10.0)
    state = DetectorModelState()
    spent = []
    for moved in moves:
        controller.before(state)
        looks = not spent or (moved and state.looks.may("nanodet", 1.0, 0.1))
        cost = rest * budget + look * looks
        spent.append(cost)
        controller.after(result(cost))
    allowed = controller.target * (len(spent) - 1) + look + rest * budget
    assert sum(spent[1:]) <= allowed + 1e-6


class DetectorModelState:
    looks: Any = None


def result(ms: float) -> StepResult:
    took = {"nanodet": Cost(0, ms / 1e3)}
    ran = ({"nanodet": "motion"} if ms else {},)
    return StepResult(None, None, (False,), 0, 0, 0.0, ms / 1e3, ran=ran, costs=took)


def test_what_was_saved_is_spent_on_motion_within_a_second() -> None:
    controller, state = LookController(Budget.parse("10ms"), 10.0), DetectorModelState()
    for _ in range(100):
        controller.before(state)
        controller.after(result(0.0))
    looks = 0
    for _ in range(50):
        controller.before(state)
        looked = state.looks.may("nanodet", 1.0, 0.1)
        looks += looked
        controller.after(result(50.0 * looked))
    assert looks == pytest.approx(50 * 10 / 50 + 10 * 10 / 50, abs=1)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_part_is_of_what_all_networks_take_that_run_whenever_they_may(share: float) -> None:
    controller, state = LookController(Budget.parse("50%"), 10.0), DetectorModelState()
    state.looks = Looks(share=share)
    controller.before(state)
    assert controller.step_budget == {}  # not known yet
    spent = total = 0
    for k in range(400):
        controller.before(state)
        looks, dense = state.looks.may("nanodet", 1.0, 0.1), 100 if k < 200 else 300
        cost = dense * looks
        took = {"nanodet": Cost(cost, 0.0, dense)}
        controller.after(replace(result(1.0 * looks), macs=cost, dense_macs=dense, costs=took))
        spent, total = spent + cost, total + dense
    assert spent / total == pytest.approx(0.5 * share, abs=0.02)
    assert controller.step_budget == {"budget_macs": pytest.approx(150 * share)}


def test_a_budget_in_a_file_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from costream.options import budget as budget_file

    monkeypatch.setattr(budget_file, "CHECK_S", 0.0)
    path = tmp_path / "budget"
    path.write_text("10ms")
    controller, state = LookController(BudgetFile(path), 10.0), DetectorModelState()
    controller.before(state)
    assert controller.step_budget == {"budget_ms": 10.0}
    path.write_text("20 ms\n")
    controller.before(state)
    assert controller.step_budget == {"budget_ms": 20.0}


COSTS_MS = {"nanodet": 50.0, "mn04": 20.0, "costgcn-2d": 12.0}  # of a run
PERIODS = {"nanodet": 3, "mn04": 8, "costgcn-2d": 1}  # steps from one request to the next


def shared(budget_ms: float, steps: int, gains: Mapping[str, float]) -> tuple[float, Any]:
    """Return milliseconds for each step and, by network, the steps in which it ran.

    ``gains``: of a run a second after another; there are 15 steps a second.
    """
    controller, state = LookController(Budget.parse(f"{budget_ms}ms"), 15.0), DetectorModelState()
    ran: dict[str, list[int]] = {name: [0] for name in gains}
    total = 0.0
    for k in range(1, steps):
        controller.before(state)
        now = {}
        for name, gain in gains.items():
            age_s = (k - ran[name][-1]) / 15
            if k % PERIODS[name] == 0 and state.looks.may(name, gain * age_s, age_s):
                ran[name].append(k)
                now[name] = "motion"
        took = {name: Cost(0, COSTS_MS[name] / 1e3 * (name in now)) for name in gains}
        ms = 1.0 + sum(1e3 * cost.s for cost in took.values())
        total += ms
        step = StepResult(None, None, (False,), 0, 0, 0.0, ms / 1e3, ran=(now,), costs=took)
        controller.after(step)
    return total / steps, ran


@pytest.mark.parametrize("budget_ms", [5.0, 10.0, 20.0])
def test_networks_share_a_budget_for_a_minute(budget_ms: float) -> None:
    mean_ms, ran = shared(budget_ms, 900, dict.fromkeys(COSTS_MS, 1.0))
    assert mean_ms == pytest.approx(budget_ms, rel=0.1)
    for steps in ran.values():  # none is forgotten
        assert max(np.diff(steps)) <= 15 * 3.5


def test_who_gains_more_runs_more_often() -> None:
    equal = shared(10.0, 900, dict.fromkeys(COSTS_MS, 1.0))[1]
    for name in COSTS_MS:
        more = shared(10.0, 900, {**dict.fromkeys(COSTS_MS, 0.2), name: 1.0})[1]
        assert len(more[name]) > len(equal[name])


def test_none_starves_where_the_budget_is_less_than_what_every_step_takes() -> None:
    ran = shared(0.5, 900, dict.fromkeys(COSTS_MS, 1.0))[1]
    for name, steps in ran.items():
        assert max(np.diff(steps)) <= 60 + PERIODS[name]


def exceeding(budget_ms: float, taken_ms: float, look_ms: float) -> LookController:
    """Return the controller of two minutes of steps, of which each has a look if it may."""
    controller, state = LookController(Budget.parse(f"{budget_ms}ms"), 10.0), DetectorModelState()
    newest = 0
    for k in range(1200):
        controller.before(state)
        assert state.looks is not None
        assert state.looks.may is not None
        looks = state.looks.may("one", 1.0, (k - newest) / 10)
        newest = k if looks else newest
        controller.after(result(taken_ms + look_ms * looks))
    return controller


@pytest.mark.parametrize(("taken_ms", "look_ms"), [(0.1, 80.0), (1.5, 0.5)])
def test_a_budget_that_cannot_be_kept_is_reported_once(
    taken_ms: float, look_ms: float, caplog: pytest.LogCaptureFixture
) -> None:
    exceeding(1.0, taken_ms, look_ms)
    said = [record.message for record in caplog.records]
    assert said == ["the steps exceed the budget of 1.0ms with the fewest runs"]


@pytest.mark.parametrize("budget_ms", [3.0, 10.0, 100.0])
def test_a_budget_that_is_kept_on_average_is_not_reported(
    budget_ms: float, caplog: pytest.LogCaptureFixture
) -> None:
    exceeding(budget_ms, 0.5, 80.0)
    assert not caplog.records


def test_a_network_that_stops_asking_holds_nobody_up() -> None:
    controller, state = LookController(Budget.parse("10ms"), 15.0), DetectorModelState()
    for _ in range(2):
        controller.before(state)
        controller.after(result(100.0))
    assert not state.looks.may("mn04", 1.0, 3.0)
    for _ in range(40):
        controller.before(state)
        controller.after(result(0.0))
    controller._heads["nanodet"].cost = 50.0
    assert state.looks.may("nanodet", 1.0, 0.2)


def test_feeds_of_a_watch_have_controllers_of_their_own(small: DetectorModel) -> None:
    throttles = [LookController(Budget.parse(budget), 5.0) for budget in ("1000TMAC", "1MAC")]
    states = FeedStates(small, 2, throttles=throttles)
    rng = np.random.default_rng(0)
    looked = []
    for k in range(5):
        picture = rng.integers(0, 256, (64, 64, 3), np.uint8)
        results = states.step([0, 1], [frame(picture, k / 5)] * 2)
        looked.append([bool(result.ran and result.ran[0]) for result in results])
    assert [row[0] for row in looked] == [True] * 5
    assert [row[1] for row in looked] == [True, False, False, False, False]
