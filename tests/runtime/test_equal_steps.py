"""Budgets of models whose steps all take the same: kept, refused before the run, or reported."""

from __future__ import annotations

from pathlib import Path

import pytest

import costream
from costream.core.errors import UsageError
from costream.core.records import AudioBlock, Compute, Prediction, Record
from costream.models.base import StepResult
from costream.models.streaming import StreamingModel
from costream.options.budget import Budget, BudgetFile
from costream.runtime.budget import LookController, check_budget, controller
from costream.runtime.watch.feed_states import FeedStates
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.paths import SAMPLES, WEIGHTS
from kit.runs import records, refused, run

STREET, MOVES = SAMPLES / "street.ogg", SAMPLES / "moves.csv"


@pytest.fixture(scope="module")
def sound() -> costream.LoadedModel:
    return costream.load_model(WEIGHTS / "mn04.safetensors", device="cpu")


@pytest.fixture(scope="module")
def blocks(sound: costream.LoadedModel) -> list[AudioBlock]:
    source = open_source(str(STREET), SourceOptions(sound=sound.info.sound, end_s=3.0))
    source.open()
    found = [item for item in source.items() if isinstance(item, AudioBlock)]
    source.close()
    return found


def test_a_budget_that_is_kept_changes_nothing(sound: costream.LoadedModel) -> None:
    free = costream.listen(STREET, sound, end=3).collect().records
    result = costream.listen(STREET, sound, end=3, budget="30MMAC").collect()
    kept = result.records

    def predictions(found: list[Record]) -> list[Prediction]:
        return [record for record in found if isinstance(record, Prediction)]

    assert predictions(kept) == predictions(free) != []
    costs = [record for record in kept if isinstance(record, Compute)]
    assert {cost.budget_macs for cost in costs} == {30e6}
    assert max(cost.macs for cost in costs) <= 30e6
    assert result.header is not None
    assert result.header.options["budget"] == "30MMAC"
    assert result.header.options["exact"] is True  # nothing is left out


def test_a_file_is_still_computed_in_chunks(
    sound: costream.LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, steps = [], StreamingModel.steps

    def counted(self: StreamingModel, items: list[AudioBlock], state: object) -> list[StepResult]:
        taken.append(len(items))
        return steps(self, items, state)

    monkeypatch.setattr(StreamingModel, "steps", counted)
    found = costream.listen(STREET, sound, end=9, budget="1s").collect().records
    assert taken == [sound.info.chunk, 2]
    assert {record.budget_ms for record in found if isinstance(record, Compute)} == {1000.0}


@pytest.mark.parametrize("budget", ["27MMAC", "1MMAC", "99%"])
def test_less_than_what_each_step_takes_is_refused(
    sound: costream.LoadedModel, budget: str
) -> None:
    with pytest.raises(UsageError, match=r"each step of mn04 takes 27\.2 MMAC, the budget is"):
        sound.stream(rate_hz=32_000, budget=budget)
    with pytest.raises(UsageError, match=budget):
        costream.listen(STREET, sound, budget=budget)


@pytest.mark.parametrize("budget", ["28MMAC", "100%", "200%", "1ms", "0.001x"])
def test_enough_operations_and_all_times_are_accepted(
    sound: costream.LoadedModel, budget: str
) -> None:
    check_budget(sound.network, Budget.parse(budget))


def test_a_part_is_of_recomputing_the_window() -> None:
    model = costream.load_model("costgcn", device="cpu").network
    check_budget(model, Budget.parse("10%"))  # a step takes a thirtieth
    with pytest.raises(UsageError, match=r"takes 5.8 MMAC, the budget is 2% \(3.5 MMAC\)"):
        check_budget(model, Budget.parse("2%"))


def test_a_file_of_a_budget_is_checked_too(sound: costream.LoadedModel, tmp_path: Path) -> None:
    path = tmp_path / "budget"
    path.write_text("1MMAC")
    with pytest.raises(UsageError, match="each step of mn04"):
        check_budget(sound.network, BudgetFile(path))


@pytest.mark.slow
def test_all_commands_refuse_it_in_one_line(tmp_path: Path) -> None:
    words = "each step of mn04 takes 27.2 MMAC, the budget is 1MMAC"
    refused(2, words, "listen", STREET, "-m", "mn04", "--budget", "1MMAC")
    refused(2, words, "batch", STREET, "-m", "mn04", "--budget", "1MMAC", "-o", tmp_path / "out")
    refused(2, words, "bench", "budget", STREET, "-m", "mn04", "--budget", "1MMAC")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_watch_takes_any_budget(tmp_path: Path) -> None:
    for budget, field in (("30MMAC", "budget_macs"), ("1s", "budget_ms"), ("9x", "budget_share")):
        folder = tmp_path / budget
        run(
            *("watch", STREET, "--realtime", "--speed", 10, "-m", "mn04"),
            *("--budget", budget, "-o", folder),
        )
        costs = records((folder / "street.ogg.jsonl").read_text(), "compute")
        assert len(costs) >= 4  # one each ten seconds
        assert all(field in cost for cost in costs)


def step_of(ms: float) -> StepResult:
    return StepResult(None, None, (False,), 10, 10, ms / 1e3, 0.0)


@pytest.mark.parametrize(("ms", "said"), [(1.9, 0), (2.5, 1)])
def test_steps_that_take_longer_are_reported_once(
    ms: float, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    throttle = LookController(Budget.parse("2ms"), 10.0, decides=False)
    for _ in range(2000):
        throttle.before(None)
        throttle.after(step_of(ms))
    words = "the steps exceed the budget of 2ms and all of them take the same"
    assert [record.message for record in caplog.records] == [words] * said


@pytest.mark.slow
def test_persons_of_a_table_have_a_budget(caplog: pytest.LogCaptureFixture) -> None:
    model = costream.load_model("costgcn", device="cpu")
    found = costream.detect(MOVES, model, end=30, budget="0.001ms").collect().records
    assert {record.budget_ms for record in found if isinstance(record, Compute)} == {0.001}
    assert sum("exceed the budget of 0.001ms" in r.message for r in caplog.records) == 1


def test_feeds_with_a_budget_are_one_batch(
    sound: costream.LoadedModel, blocks: list[AudioBlock], caplog: pytest.LogCaptureFixture
) -> None:
    throttles = [controller(sound.network, Budget.parse(text), 4.0) for text in ("1s", "0.001ms")]
    free = FeedStates(sound.network, 2)
    kept = FeedStates(sound.network, 2, throttles=[each for each in throttles if each])
    for block in blocks:
        results = kept.step([0, 1], [block, block])
        expected = free.step([0, 1], [block, block])
        for one, other in zip(results, expected, strict=True):
            assert (one.probabilities == other.probabilities).all()
    for _ in range(80):  # as long as the account of the second takes to be overdrawn
        kept.step([1], [blocks[0]])
    assert [kept.step_budget(row) for row in (0, 1)] == [{"budget_ms": 1e3}, {"budget_ms": 1e-3}]
    assert [r.message for r in caplog.records] == [
        "the steps exceed the budget of 0.001ms and all of them take the same"
    ]
