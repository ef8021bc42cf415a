"""The fastest of several ways: measured once, by turns."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from costream.nn.choices import Choices, Times, chosen, measure

SLOW_S = 2e-3


def work_for(seconds: float) -> None:
    """Compute for so long, in processor time."""
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        pass


@pytest.fixture
def ways() -> dict[str, object]:
    return {"slow": lambda: work_for(SLOW_S), "fast": lambda: None}


def test_the_fastest_way_is_taken_and_its_time_is_kept(ways):
    kept: dict[str, Times] = {}
    choices = Choices()
    choices.keep_in(kept)
    assert choices.fastest("work", ways) == "fast"
    ((name, times),) = kept.items()
    assert name == f"work, {torch.get_num_threads()} thread" + "s" * (torch.get_num_threads() > 1)
    assert times["slow"] >= 1e6 * SLOW_S > times["fast"]


def test_what_is_known_is_not_measured_again(ways):
    choices = Choices()
    choices.fastest("work", ways)
    called = []
    again = {name: lambda: called.append(1) for name in ways}
    assert choices.fastest("work", again) == "fast"
    assert not called
    choices.fastest("other work", again)
    assert called


def test_ways_that_were_not_timed_are_measured(ways):
    choices = Choices()
    choices.fastest("work", {"slow": ways["slow"]})
    assert choices.fastest("work", ways) == "fast"


@pytest.mark.parametrize(("second", "taken"), [(9.4, "b"), (9.6, "a"), (20.0, "a")])
def test_another_way_than_the_first_has_to_save_five_per_cent(second, taken):
    assert chosen({"a": 10.0, "b": second}) == taken


def test_the_first_way_is_taken_where_nothing_can_be_kept(ways):
    class Full(dict[str, Times]):
        def __setitem__(self, *_: object) -> None:
            """Keep nothing."""

    choices = Choices()
    choices.keep_in(Full())
    assert choices.fastest("work", ways) == "slow"


def test_threads_that_need_the_same_work_measure_it_once(ways):
    choices, turns = Choices(), []
    watched = {"slow": ways["slow"], "fast": lambda: turns.append(threading.get_ident())}
    threads = [threading.Thread(target=choices.fastest, args=("w", watched)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*turns}) == 1


def test_a_way_may_need_a_choice_itself(ways):
    choices = Choices()
    outer = {"nested": lambda: choices.fastest("inner", ways), "slow": ways["slow"]}
    assert choices.fastest("outer", outer) == "nested"
    assert choices.fastest("inner", dict.fromkeys(ways, pytest.fail)) == "fast"


@pytest.mark.skipif(sys.platform == "win32", reason="processor time has ticks of 15 ms there")
def test_time_in_which_other_programs_ran_does_not_count():
    assert torch.get_num_threads() == 1
    times = measure({"interrupted": lambda: time.sleep(SLOW_S), "slow": lambda: work_for(SLOW_S)})
    assert times["interrupted"] < times["slow"]


def test_long_work_is_measured_in_few_turns():
    calls = []

    def long() -> None:
        calls.append(1)
        work_for(0.06)

    Choices().fastest("work", {"long": long, "short": lambda: None})
    assert len(calls) < 8
