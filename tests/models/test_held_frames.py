"""Frontends within a budget: where a step may not compute, or needs not, its token is held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.core.records import Compute
from costream.models.catalogue import load_model
from costream.models.oad.tdn import TemporalDifferenceNet
from costream.options.budget import Budget
from costream.options.options import Options
from costream.runtime.pipeline import run
from costream.sources.base import SourceOptions
from costream.sources.uris import open_source
from kit.paths import SAMPLES
from kit.streams import RecordSink

pytestmark = pytest.mark.usefixtures("no_grad")


def network(lags: tuple[int, ...], glimpse_width: int = 0) -> TemporalDifferenceNet:
    torch.manual_seed(len(lags))
    net = TemporalDifferenceNet((33, 21), (4, 4, 6, 8), 3, lags, 1, glimpse_width, 2)
    for norm in net.modules():
        if isinstance(norm, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)  # type: ignore[arg-type]
            torch.nn.init.uniform_(norm.bias, -1, 1)
    return net.double().eval()


def pictures() -> torch.Tensor:
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.integers(0, 256, (3, 1, 3, 21, 33), np.uint8))


@settings(max_examples=15)
@given(
    lags=st.sampled_from([(), (1,), (1, 3), (2, 5)]),
    shown=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 8), st.booleans()), min_size=1, max_size=5
    ),
)
def test_tokens_are_those_of_the_held_frames(
    lags: tuple[int, ...], shown: list[tuple[int, int, bool]]
) -> None:
    """Computed tokens equal those of a dense stream of the held frames; all do without a limit."""
    net, few = network(lags), pictures()
    state, dense, free, plain = (net.init_state() for _ in range(4))
    held = None
    for picture, times, may in shown:
        for _ in range(times):
            found, macs = net.forward_held(few[picture], state, may=may)
            held = picture if held is None or may else held
            expected = net.forward_step(few[held], dense)
            if macs or may:
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
            assert macs in (0, net.count_macs())
            always, _ = net.forward_held(few[picture], free, may=True)
            torch.testing.assert_close(
                always, net.forward_step(few[picture], plain), rtol=0, atol=1e-12
            )


def test_a_still_picture_is_not_computed_again() -> None:
    net, picture = network((1, 3)), pictures()[0]
    state = net.init_state()
    costs = [net.forward_held(picture, state, may=True)[1] for _ in range(8)]
    assert [cost > 0 for cost in costs] == [True] * 4 + [False] * 4


def test_operations_are_those_of_the_steps_that_compute() -> None:
    """The picture is looked at for every second frame that is computed, every eighth if few are."""
    net, few = network((1,), glimpse_width=4), pictures()
    assert net.glimpse is not None
    look = net.glimpse.count_macs(21, 33)
    rest, state = net.count_macs() - look // 2, net.init_state()

    def costs(may: list[bool]) -> list[int]:
        shown = enumerate(may)
        return [net.forward_held(few[(k + k // 3) % 3], state, may=m)[1] for k, m in shown]

    full = rest + look
    assert costs([True, True, False, True, True]) == [full, rest, 0, full, rest]
    third = [True, False, False]
    assert costs(10 * third)[::3] == [full, *7 * [rest], full, rest]


@pytest.mark.parametrize("change", ["reset", "put", "load"])
def test_another_stream_holds_nothing_of_the_one_before(change: str) -> None:
    net, few = network((1, 3)), pictures()
    state = net.init_state()
    net.forward_held(few[0], state, may=True)
    other: dict[str, Any] = {
        "reset": lambda: state.reset(),
        "put": lambda: state.put([0], net.init_state()),
        "load": lambda: state.load_tensors(net.init_state().tensors()),
    }
    other[change]()
    found, macs = net.forward_held(few[1], state, may=False)
    assert macs
    torch.testing.assert_close(found, net.forward_step(few[1], net.init_state()))


def test_a_run_keeps_its_budget_on_average() -> None:
    model = load_model("cooadtr", device="cpu")
    sink, options = RecordSink(), SourceOptions(box=model.info.box, end_s=10.0)
    source = open_source(str(SAMPLES / "room.mp4"), options)
    run(source, model, [sink], options=Options(budget=Budget.parse("19MMAC")))
    costs = sink.of(Compute)
    macs = [cost.macs for cost in costs[8:]]
    assert len(macs) > 60
    assert np.mean(macs) == pytest.approx(19e6, rel=0.1)
    assert {bool(cost.ran) for cost in costs} == {True, False}
    assert all(cost.budget_macs == 19e6 for cost in costs)
