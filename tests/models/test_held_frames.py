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
from costream.models.oad.changed_body import CHANGE
from costream.models.oad.image_context import ImageContext
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
    net.stem[1][1].weight *= 100  # type: ignore[index]  # so that changes count as such
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
    """Computed tokens equal those of a dense stream of the held frames; all do without a limit.

    The pictures are noise, so that all places of the body change, or none.
    """
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
            assert 0 <= macs <= net.count_macs()
            always, macs = net.forward_held(few[picture], free, may=True)
            torch.testing.assert_close(
                always, net.forward_step(few[picture], plain), rtol=0, atol=1e-12
            )
            assert macs in (0, net.count_macs())


@settings(max_examples=25)
@given(seed=st.integers(0, 99), moves=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_body_is_computed_where_its_input_has_changed(seed: int, moves: list[int]) -> None:
    """The maps equal those of complete convolutions, of which only these places are taken."""
    net = network((1, 3))
    body, rng = net.folded().changed, torch.Generator().manual_seed(seed)
    kept, (high, wide) = body.init_state(), body.size
    joined = torch.randn(1, 10, 6, 9, dtype=torch.float64, generator=rng)
    was, expected = joined.clone(), torch.zeros(0)
    for number, move in enumerate([0, *moves]):
        where = torch.rand(6, 9, generator=rng) < move / 100
        joined = joined + where * torch.randn(joined.shape, dtype=torch.float64, generator=rng)
        joined = joined + 0.03 * torch.randn(joined.shape, dtype=torch.float64, generator=rng)
        chosen = np.ones((high, wide), bool)
        if number:
            squares = (joined - was)[0].square().mean(0).numpy()
            cells = [
                [np.sqrt(squares[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean()) for j in range(wide)]
                for i in range(high)
            ]
            moved = np.pad(np.array(cells) > CHANGE, 1)
            chosen = np.max(
                [moved[i : i + high, j : j + wide] for i in range(3) for j in range(3)], 0
            )
        taken = torch.from_numpy(chosen)
        read = taken.repeat_interleave(2, 0).repeat_interleave(2, 1)[:6, :9]
        was = torch.where(read, joined, was)
        expected = by_mask(net, joined, taken, expected)
        focus, places, count = body.step(joined, kept)
        assert count == chosen.sum()
        torch.testing.assert_close(torch.cat((places, focus), 1), expected[-1], rtol=0, atol=1e-12)


def by_mask(net: Any, joined: torch.Tensor, taken: torch.Tensor, before: Any) -> list[torch.Tensor]:
    """Return all maps of a body, the last of which are its outputs; places not taken stay."""
    first, block = net.body
    maps: list[torch.Tensor] = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        maps.append(torch.where(taken, x, before[len(maps)]) if len(before) else x)
        return maps[-1]

    x = keep(first(joined))
    inner = keep(block.first(x))
    x = keep((x + block.norm(block.second(inner))).relu())
    keep(torch.cat((net.places(x), net.focus(x)), 1))
    return maps


def test_a_still_picture_is_not_computed_again() -> None:
    net, picture = network((1, 3)), pictures()[0]
    state = net.init_state()
    costs = [net.forward_held(picture, state, may=True)[1] for _ in range(8)]
    assert [cost > 0 for cost in costs] == [True] * 4 + [False] * 4


def test_operations_are_those_of_the_steps_that_compute() -> None:
    """The picture is looked at for every second frame that is computed, without a limit at once."""
    net, few = network((1,), glimpse_width=4), pictures()
    assert net.glimpse is not None
    look = net.glimpse.count_macs(21, 33)
    rest, state = net.count_macs() - look // 2, net.init_state()

    def costs(may: list[bool]) -> list[int]:
        shown = enumerate(may)
        return [net.forward_held(few[(k + k // 3) % 3], state, may=m)[1] for k, m in shown]

    full = rest + look
    assert costs(4 * [True]) == [full, rest, full, rest]
    assert costs([False, True, False]) == [0, rest, 0]
    third = [True, False, False]
    spent = np.array(costs(34 * third))[::3] - rest
    assert (spent < look / 3).all(), "a layer for each frame"
    begins = np.flatnonzero((spent > 0) & (np.append(0, spent[:-1]) == 0))
    assert np.diff(begins).tolist() == [16]
    assert spent[begins[0] : begins[1]].sum() == look
    calm = costs(120 * [True])
    assert calm[-4:] in ([full, rest, full, rest], [rest, full, rest, full])


def test_a_look_in_layers_sees_what_a_look_at_once_does() -> None:
    context, picture = ImageContext(5).double(), pictures()[0]
    *layers, (macs, features) = context.by_layer(picture)
    assert features is not None
    torch.testing.assert_close(features, context(picture), rtol=0, atol=0)
    assert all(made is None for _, made in layers)
    assert sum(cost for cost, _ in layers) + macs == context.count_macs(21, 33)


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
    macs = [cost.macs for cost in costs]  # the first frame is computed in full
    assert len(macs) > 60
    assert 0.88 * 19e6 < np.mean(macs) < 1.02 * 19e6  # less where nothing moves
    assert {bool(cost.ran) for cost in costs} == {True, False}
    assert all(cost.budget_macs == 19e6 for cost in costs)
