"""Token count at the gates of a step, on a machine with a simulated clock."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

from costream.runtime.budget import GateController

GATES, MOST = 37, 240
BEFORE, AFTER, TOKEN = 8.0, 20.0, 0.13  # milliseconds: before the gates, behind them, a token


def cost(count: int) -> float:
    """Milliseconds of a step with so many tokens at each gate."""
    return BEFORE + AFTER + TOKEN * count


class Machine:
    """A machine that is ``speeds(step, share of it)`` times slower than expected."""

    def __init__(self, speeds: Callable[[int, float], float]) -> None:
        self.now, self._speeds = 0.0, speeds
        self.controller = GateController(lambda: self.now)

    def _work(self, step: int, share: float, ms: float) -> None:
        self.now += 1e-3 * ms * self._speeds(step, share)

    def step(self, number: int, count: int, target: float, paced: bool) -> tuple[float, list[int]]:
        """Return how long a step takes, in milliseconds, and the tokens of its gates."""
        began, counts = self.now, []
        pace = self.controller.begin(count, MOST, target, cost)
        self._work(number, 0.0, BEFORE)
        for gate in range(GATES):
            wanted = pace(gate)
            counts.append(wanted if paced else count)
            self._work(number, gate / GATES, TOKEN / GATES * counts[-1])
        self._work(number, 1.0, AFTER)
        ms = 1e3 * (self.now - began)
        self.controller.end(ms)
        return ms, counts


def test_an_even_machine_is_left_alone() -> None:
    machine = Machine(lambda _step, _share: 1.0)
    for number in range(20):
        ms, counts = machine.step(number, 100, cost(100), paced=True)
        assert set(counts) == {100}
        assert ms == pytest.approx(cost(100))


@pytest.mark.parametrize(("slower", "kept"), [(1.3, 0.14), (0.8, 0.12)])
def test_a_step_that_is_off_from_its_beginning_is_kept(slower: float, kept: float) -> None:
    machine = Machine(lambda step, _share: slower if step == 10 else 1.0)
    for number in range(10):
        machine.step(number, 120, cost(120), paced=True)
    ms, counts = machine.step(10, 120, cost(120), paced=True)
    assert (counts[-1] < 120) == (slower > 1)
    assert abs(ms / cost(120) - 1) < kept < abs(slower - 1)


def test_noise_within_steps_is_evened_out() -> None:
    def off(paced: bool) -> float:
        speeds = np.exp(np.random.default_rng(0).normal(0, 0.2, 300))
        machine = Machine(lambda step, _share: speeds[step])
        times = [machine.step(k, 120, cost(120), paced)[0] for k in range(300)]
        return median(abs(ms / cost(120) - 1) for ms in times[20:])

    assert off(paced=True) < 0.7 * off(paced=False)


def test_tokens_stay_between_one_and_all() -> None:
    for slower in (0.1, 10.0):
        machine = Machine(lambda _step, _share, s=slower: s)
        for number in range(5):
            _, counts = machine.step(number, 100, cost(100), paced=True)
            assert all(1 <= count <= MOST for count in counts)


def test_the_tokens_of_a_step_are_returned_once() -> None:
    controller = GateController(lambda: 0.0)
    assert controller.end(10.0) is None
    pace = controller.begin(7, MOST, 50.0, cost)
    assert [pace(gate) for gate in range(3)] == [7, 7, 7]
    assert controller.end(50.0) == 7
    assert controller.end(50.0) is None
