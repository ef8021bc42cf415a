from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.attention import MultiheadAttention
from costream.nn.nystrom import summary
from costream.nn.nystrom.continual import RetroactiveNystrom, SingleOutputNystrom
from costream.nn.nystrom.window import NystromAttention, pseudo_inverse, segment_sizes
from kit.nystrom_oracle import build, oracle

KINDS = [SingleOutputNystrom, RetroactiveNystrom]
# Of float32 outputs of size one, logits of any size: the bound that is promised.
TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}


def check(module: Any, x: Tensor, times: list[int], **tolerance: float) -> None:
    """Compare the steps of a stream [T, d] with the oracle at these times."""
    state, n = module.init_state(), module.window
    with torch.inference_mode():
        for t, row in enumerate(x[: max(times) + 1]):
            out = module.forward_step(row[None], state)[0]
            if t in times:
                truth = oracle(module, x, t).to(x.dtype)
                if isinstance(module, RetroactiveNystrom):
                    out = out[[k % n for k in range(max(0, t + 1 - n), t + 1)]]
                else:
                    truth = truth[-1]
                torch.testing.assert_close(out, truth, **tolerance)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(12, 4), (13, 4), (7, 7), (1, 1), (5, 1), (11, 8)])
def test_every_step_is_the_formula(kind: type, fixed: bool, n: int, m: int) -> None:
    module = build(kind, 8, 2, n, m, fixed=fixed)
    check(module, torch.randn(4 * n + 3, 8).double(), list(range(4 * n + 3)))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None)
@given(data=st.data())
def test_any_sizes_and_logits(kind: type, fixed: bool, data: st.DataObject) -> None:
    n = data.draw(st.integers(12, 64))
    m, h = data.draw(st.integers(12, n)), data.draw(st.sampled_from([1, 2, 4]))
    torch.manual_seed(n * m)
    scale = data.draw(st.sampled_from([1.0, 16.0]))
    module = build(kind, 8, h, n, m, scale, fixed=fixed)
    x = torch.randn(3 * n + 5, 8).double()
    check(module, x, [0, n // 2, n - 1, n, 2 * n - 3, 3 * n + 4])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "m"), [(30, 4), (31, 7), (17, 17)])
def test_windows_of_many_chunks(
    kind: type, fixed: bool, n: int, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "LEAST_SLOTS", 1)
    monkeypatch.setattr(summary, "SLOT_MULTIPLE", 1)  # of 8 to 11 slots
    module = build(kind, 8, 2, n, m, fixed=fixed)
    times = [0, 3, 4, 9, n - 2, n - 1, n, n + 1, n + 5, 2 * n - 1, 3 * n + 3]
    check(module, torch.randn(3 * n + 4, 8).double(), times)


EVERY = [(n, m) for n in range(12, 65) for m in range(12, n + 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "sizes",
    # Every remainder of n by m = 12 and of n = 64 by m; all pairs take some minutes.
    [[(n, 12) for n in range(24, 36)], pytest.param(EVERY, marks=pytest.mark.long)],
)
def test_every_remainder(kind: type, sizes: list[tuple[int, int]]) -> None:
    for n, m in sizes:
        for fixed in (False, True):
            module = build(kind, 4, 1, n, m, fixed=fixed)
            x = torch.randn(2 * n + 2, 4).double()
            check(module, x, [n - 2, n - 1, n + n // m, 2 * n - 1, 2 * n + 1])


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 4.0, 16.0])
def test_float32_error_does_not_grow_with_the_logits(kind: type, fixed: bool, scale: float) -> None:
    n = 40
    module = build(kind, 16, 4, n, 6, scale, fixed=fixed).float()
    check(module, torch.randn(5 * n, 16), [0, n - 1, 2 * n, 5 * n - 1], **TOLERANCE)


@pytest.mark.parametrize("fixed", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(
    "kind", [SingleOutputNystrom, pytest.param(RetroactiveNystrom, marks=pytest.mark.long)]
)
def test_ten_thousand_steps_with_hard_logits_leave_no_trace(kind: type, fixed: bool) -> None:
    module = build(kind, 8, 2, 8, 3, 16.0, fixed=fixed).float()
    x = torch.randn(10_000, 8)
    x[500::1000] *= 30  # where subtracted sums would keep an error, or overflow
    check(module, x, [0, 8, 505, 5_003, 9_999], **TOLERANCE)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_exact_pseudo_inverse(kind: type, fixed: bool) -> None:
    module = build(kind, 8, 2, 15, 4, 2.0, fixed=fixed, iterations=0)
    check(module, torch.randn(50, 8).double(), [3, 14, 15, 30, 49], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("fixed", [False, True])
def test_window_form_equals_steps_where_it_should(fixed: bool) -> None:
    n, m = 12, 4
    module = build(RetroactiveNystrom, 8, 2, n, m, fixed=fixed)
    x = torch.randn(1, 4 * n, 8).double()
    state = module.init_state()
    equal = []
    for t in range(4 * n):
        rows = module.forward_step(x[:, t], state)
        if t + 1 >= n:
            order = [k % n for k in range(t + 1 - n, t + 1)]
            window = NystromAttention.forward(module, x[:, t + 1 - n : t + 1])
            equal.append(torch.allclose(rows[:, order], window))
    whole = [fixed or k % (n // m) == 0 for k in range(len(equal))]
    assert equal == whole


def test_as_many_landmarks_as_rows_are_exact_attention() -> None:
    n = 9
    module = build(SingleOutputNystrom, 8, 2, n, n, iterations=0)
    x = torch.randn(2, n, 8).double()
    exact = MultiheadAttention(8, 2).double()
    exact.load_state_dict(module.state_dict())
    torch.testing.assert_close(NystromAttention.forward(module, x), exact(x))


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize(("n", "m"), [(10, 3), (40, 5)])
def test_clip_steps_and_chunks_agree(fixed: bool, n: int, m: int) -> None:
    module = build(SingleOutputNystrom, 8, 2, n, m, fixed=fixed)
    x = torch.randn(3, 3 * n + 1, 8).double()
    state, chunked = module.init_state(3), module.init_state(3)
    steps = torch.stack([module.forward_step(row, state) for row in x.unbind(1)], 1)
    torch.testing.assert_close(module(x), steps)
    chunks = [module.forward_steps(part, chunked) for part in x.split(7, 1)]
    torch.testing.assert_close(torch.cat(chunks, 1), steps)
    retroactive = build(RetroactiveNystrom, 8, 2, n, m, fixed=fixed)
    state, chunked = retroactive.init_state(3), retroactive.init_state(3)
    rows = torch.cat([retroactive.forward_steps(part, chunked) for part in x.split(7, 1)], 1)
    for t, window in enumerate(retroactive.windows(x, x.shape[1])):
        slots = [k % n for k in range(max(0, t + 1 - n), t + 1)]
        torch.testing.assert_close(retroactive.forward_step(x[:, t], state)[:, slots], window)
        torch.testing.assert_close(rows[:, t, slots], window)


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_join_start_again_and_are_restored(kind: type, fixed: bool) -> None:
    n = 11
    module = build(kind, 8, 2, n, 3, fixed=fixed)
    x = torch.randn(60, 3, 8).double()
    began, state = [0, 5, 17], module.init_state(3)
    for t, rows in enumerate(x):
        state.reset([b for b in range(3) if began[b] == t])
        if t == 30:  # saved, and gone on with in another process
            state.put([1], state.take([1]))
            fresh = module.init_state(3)
            fresh.load_tensors({k: v.clone() for k, v in state.tensors().items()})
            other = fresh
        out = module.forward_step(rows, state)
        if t >= 30:
            assert torch.equal(module.forward_step(rows, other), out)
        for b in range(3):
            if t >= began[b] and t % 7 == 0:
                since = t - began[b]
                truth = oracle(module, x[began[b] : t + 1, b], since)
                if kind is SingleOutputNystrom:
                    torch.testing.assert_close(out[b], truth[-1])
                else:
                    slots = [k % n for k in range(max(0, since + 1 - n), since + 1)]
                    torch.testing.assert_close(out[b, slots], truth)


def test_segments() -> None:
    assert segment_sizes(11, 4) == [3, 3, 3, 2]
    assert segment_sizes(4, 4) == [1, 1, 1, 1]


def test_each_matrix_is_inverted_by_itself() -> None:
    g = torch.randn(2, 3, 5, 5).double().softmax(-1)
    g[0, 0] = torch.eye(5)
    alone = torch.stack([pseudo_inverse(x[None, None])[0, 0] for x in g.flatten(0, 1)])
    torch.testing.assert_close(pseudo_inverse(g).flatten(0, 1), alone)
    torch.testing.assert_close(pseudo_inverse(g, 60) @ g, torch.eye(5).double().expand_as(g))


def test_gradients_flow_through_clips_only() -> None:
    module = build(SingleOutputNystrom, 8, 2, 6, 2)
    x = torch.randn(1, 14, 8).double()
    with torch.enable_grad():
        module(x).square().sum().backward()
        assert module.in_proj_weight.grad.abs().min() > 0
        state = module.init_state()
        assert not module.forward_step(x[:, 0], state).requires_grad


def test_macs_are_those_of_the_products() -> None:
    """Counted by what PyTorch multiplies, over n steps of a full window."""
    from torch.utils.flop_counter import FlopCounterMode

    n, m = 40, 6
    for kind in KINDS:
        for fixed in (False, True):
            module = build(kind, 16, 2, n, m, fixed=fixed)
            state = module.init_state()
            rows = torch.randn(2 * n, 1, 16).double()
            for row in rows[:n]:
                module.forward_step(row, state)
            with FlopCounterMode(display=False) as counter:
                for row in rows[n:]:
                    module.forward_step(row, state)
            spent = counter.get_total_flops() / 2 / n
            assert module.count_macs() == pytest.approx(spent, rel=1e-3)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="5 landmarks exceed the window of 4 rows"):
        SingleOutputNystrom(8, 2, 4, 5)
    with pytest.raises(ValueError, match="at least 1"):
        NystromAttention(8, 2, 0)
    module = copy.deepcopy(build(SingleOutputNystrom, 8, 2, 4, 2))
    with pytest.raises(ValueError, match="segments of its stream"):
        module(torch.randn(1, 4, 8), torch.zeros(4, dtype=torch.int64))
