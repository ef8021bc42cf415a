"""``costream bench budget``: a table of steps under a budget."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from costream.bench.budget import SETTLING, STRETCHES, Step, budget_table, budget_trace
from costream.core.errors import SourceError, UsageError
from costream.core.records import Box
from costream.models.catalogue import load_model
from costream.options.budget import Budget
from kit.media import make_video
from kit.object_nets import bright_model, random_model
from kit.paths import SAMPLES, WEIGHTS


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_video(tmp_path_factory.mktemp("clips") / "clip.mp4", 24, rate=10)


def test_every_step_is_reported(clip: Path) -> None:
    plenty = Budget.parse("1TMAC")
    trace = budget_trace(str(clip), bright_model(), plenty, steps=48)
    assert [step.stretch for step in trace] == [name for name in STRETCHES for _ in range(12)]
    assert all(step.found == step.dense for step in trace)  # nothing was left out
    assert (trace[-1].tokens or 0) > 1
    table = budget_table(trace, plenty, plenty.target(10.0), "plenty")
    assert [row[0] for row in table.rows] == [*STRETCHES, "all"]
    assert table.rows[-1][1] == 48 - SETTLING
    assert table.rows[-1][3] == "0%"  # a step costs far less


def test_precision_is_against_the_dense_network() -> None:
    seen, missed = Box(0, 0, 10, 10, 0.9, "car"), Box(20, 0, 30, 10, 0.8, "car")
    step = Step("", 100.0, 5, 10, 20, (seen,), (seen, missed))
    every = [replace(step, stretch=name) for name in STRETCHES for _ in range(20)]
    row = budget_table(every, Budget.parse("100ms"), 100.0, "half").rows[-1]
    assert row[2:4] == (1.0, "100%")
    assert row[8] == "50%"
    assert row[9] == pytest.approx(51 / 101)  # recalls up to a half


@pytest.mark.slow
def test_a_detector_of_single_pictures_keeps_a_budget_on_average_where_something_moves(
    clip: Path,
) -> None:
    half = Budget.parse("50%")
    model = load_model("nanodet", WEIGHTS / "nanodet.safetensors", device="cpu")
    trace = budget_trace(str(clip), model, half, steps=48)
    table = budget_table(trace, half, half.target(10.0, trace[0].dense_macs), "half")
    assert table.rows[3][2] == pytest.approx(1, abs=0.1)  # played
    assert table.rows[1][2] < 0.5  # paused
    assert table.rows[3][7] is None  # it has no tokens


def test_a_model_of_sound_has_a_trace_too() -> None:
    model = load_model("mn04", WEIGHTS / "mn04.safetensors", device="cpu")
    trace = budget_trace(str(SAMPLES / "street.ogg"), model, Budget.parse("28MMAC"), steps=48)
    assert {(step.cost, step.macs / step.dense_macs) for step in trace} == {(27_187_072, 1.0)}
    with pytest.raises(UsageError, match="each step of mn04 takes 27"):
        budget_trace(str(SAMPLES / "street.ogg"), model, Budget.parse("50%"))


def test_a_video_that_is_too_short(clip: Path) -> None:
    with pytest.raises(SourceError, match="fewer than 50 steps"):
        budget_trace(str(clip), random_model(), Budget.parse("1TMAC"), steps=100)
