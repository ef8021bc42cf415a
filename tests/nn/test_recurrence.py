"""Linear recurrences, shifts, states of recurrent layers and tables of positions, in streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import costream.nn as co
from kit import recurrent_nets as nets
from kit.stepping import check_part


def _by_loop(x: Tensor, decay: Tensor, dim: int) -> Tensor:
    h, out = 0 * x.select(dim, 0) * decay.select(dim, 0), []
    for b, a in zip(x.unbind(dim), decay.unbind(dim), strict=True):
        h = a * h + b
        out.append(h)
    return torch.stack(out, dim)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 70), st.sampled_from([1, 7, 300]), st.integers(0, 2), st.booleans())
def test_a_scan_is_the_loop(frames, width, dim, one_decay):
    with torch.enable_grad():
        shape = [2, width]
        shape.insert(dim, frames)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        decay = torch.rand(shape, dtype=torch.float64) * 1.1 - 0.05
        decay = decay.narrow(2 if dim < 2 else 1, 0, 1) if one_decay else decay
        wanted = _by_loop(x, decay.expand(shape), dim)
        out = co.scan(x, decay, dim)
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=1e-9)
        weights = torch.randn_like(out)
        grads = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (out, wanted)]
        torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-9)


def test_types_of_a_scan():
    x = torch.randn(1, 500, 2)
    assert co.scan(x, 0.9).dtype is torch.float32
    assert co.scan(x.half(), 0.9).dtype is torch.float16
    wanted = co.scan(x.half().double(), 0.9)
    torch.testing.assert_close(co.scan(x.half(), 0.9).double(), wanted, rtol=1e-3, atol=1e-3)
    whole = torch.randint(0, 9, (1, 50))
    torch.testing.assert_close(co.scan(whole, 1), whole.cumsum(1))
    assert co.scan(x[:, :0], 0.9).shape == (1, 0, 2)
    start = torch.randn(1, 2)
    torch.testing.assert_close(co.scan(x, 0.5, 1, start)[:, 0], 0.5 * start + x[:, 0])


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([0.9, 1.0, None]))
def test_a_stream_of_a_scan_is_its_clip(chunks, decay):
    part = co.Sequential(
        co.Conv1d(3, 4, 3, padding=1), co.Scan(torch.rand(4) if decay is None else decay)
    ).double()
    check_part(part, torch.randn(3, 3, 60, dtype=torch.float64), chunks)


def test_a_scan_takes_the_decay_of_each_step():
    x, decay = torch.randn(2, 3, 40, 5), torch.rand(2, 3, 40, 1)
    part = co.Scan()
    whole, state = part(x, decay), part.init_state(2, x[:, :, 0])
    steps = [
        part.forward_step(a, state, b) for a, b in zip(x.unbind(2), decay.unbind(2), strict=True)
    ]
    torch.testing.assert_close(torch.stack(steps, 2), whole)
    for wrong in (lambda: part(x), lambda: co.Scan(0.5)(x, decay)):
        with pytest.raises(ValueError, match="the decay is needed once"):
            wrong()


def test_the_state_of_a_scan_is_saved():
    net = co.convert(nets.Mamba().eval(), torch.randn(1, 12, 6), 1)
    x, state = torch.randn(2, 20, 6), net.init_state(2)
    net.forward_steps(x[:, :9], state)
    saved = {name: tensor.clone() for name, tensor in state.tensors().items()}
    again = net.init_state(2)
    again.load_tensors(saved)
    assert torch.equal(net.forward_steps(x[:, 9:], state), net.forward_steps(x[:, 9:], again))


def _last(layer: Any, read: Any, width: int) -> Any:
    return lambda: nets.LastState(layer, read, width)


ROWS, SOUND, VIDEO = (1, 12, 6), (1, 4, 20), (1, 16, 6, 5, 5)
WINDOW, RECYCLED = "windowed attention", "recycling positions"
# network -> shape of a clip, time axis, approximations, delay
NETS: dict[str, tuple[Any, tuple[int, ...], int, tuple[str, ...], int]] = {
    "ema": (nets.Ema, ROWS, 1, (), 0),
    "mamba": (nets.Mamba, ROWS, 1, (), 0),
    "rg-lru": (nets.RgLru, ROWS, 1, (), 0),
    "linear attention": (nets.LinearAttention, ROWS, 1, (), 0),
    "gated linear attention": (nets.GatedLinearAttention, ROWS, 1, (), 0),
    "retention": (lambda: nets.GatedLinearAttention(constant=True), ROWS, 1, (), 0),
    "mingru": (nets.MinGru, ROWS, 1, (), 0),
    "qrnn": (nets.Qrnn, SOUND, 2, (), 0),
    "sru": (nets.Sru, ROWS, 1, (), 0),
    "s4d": (nets.S4d, ROWS, 1, (), 0),
    "tsm online": (nets.TemporalShift, VIDEO, 2, (), 0),
    "tsm": (
        lambda: nn.Sequential(nets.TemporalShift(both=True), nets.TemporalShift(both=True)),
        VIDEO, 2, (), 2,
    ),
    "tsm of frames": (nets.FramesFirstShift, (1, 6, 8, 5, 5), 1, (), 0),
    "tsn": (nets.SegmentShift, (1, 8, 3, 5, 5), 1, ("running mean",), 1),
    "sinusoidal": (nets.Sinusoidal, ROWS, 1, (RECYCLED,), 0),
    "lstm h": (_last(nn.LSTM(6, 5, batch_first=True), lambda s: s[0][-1], 5), ROWS, 1, (), 0),
    "lstm c": (
        _last(nn.LSTM(6, 5, 2, batch_first=True, proj_size=3), lambda s: s[1].sum(0), 5),
        ROWS, 1, (), 0,
    ),
    "gru layers": (
        _last(nn.GRU(6, 5, 2, batch_first=True), lambda h: torch.cat([h[-2], h[-1]], 1), 10),
        ROWS, 1, (), 0,
    ),
    "rnn": (_last(nn.RNN(6, 5, batch_first=True), lambda h: h.squeeze(0), 5), ROWS, 1, (), 0),
    "cnn lstm": (nets.CnnLstm, (1, 6, 3, 9, 9), 1, (), 0),
    "positions": (lambda: nets.Positioned(12), (1, 12, 8), 1, (WINDOW, RECYCLED), 0),
    "long table": (
        lambda: nets.Positioned(99, first=True), (1, 12, 8), 1, (WINDOW, RECYCLED), 0,
    ),
    "embedded": (nets.Embedded, SOUND, 2, (RECYCLED,), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_streams_of_published_networks_are_their_clips(name):
    make, shape, axis, approximate, delay = NETS[name]
    net, example = make().eval(), torch.randn(shape)
    continual = co.convert(net, example, axis, approximate=approximate)
    assert continual.delay == delay
    clip = torch.randn(2, *shape[1:axis], 31, *shape[axis + 1 :], dtype=torch.float64)
    check_part(continual.double(), clip, [3, 1, 20])
    wanted, own = net.double()(example.double()), continual(example.double())
    if wanted.dim() < own.dim():  # a head: for each frame
        own = own[:, -1]
    if WINDOW not in approximate and "running mean" not in approximate:
        torch.testing.assert_close(own, wanted, rtol=0, atol=1e-9)


def test_tables_begin_again():
    net = nets.Embedded().eval().double()
    continual = co.convert(net, torch.randn(SOUND), approximate=[RECYCLED])
    assert "begins again after 20 rows" in str(continual.report())
    x, state = torch.randn(1, 4, 45, dtype=torch.float64), continual.init_state(1)
    rows = net.table.weight[torch.arange(45) % 20].T
    steps = continual.forward_steps(x, state)
    torch.testing.assert_close(steps, net.conv(x + rows)[:, :, :44])


class _In(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.gru = function, nn.GRU(6, 6, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def _in_place(_: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1:, :2] = x[:, :-1, :2]
    return x


def _one_frame(_: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, 0] = 1
    return out


REFUSED = [
    (nets.LoopedScan(), ROWS, "cannot be traced.*a loop over frames.*co.scan"),
    (nets.SegmentShift(6), (1, 6, 3, 5, 5), "view: .*its 6 is the number of frames.* and -1"),
    (_In(lambda m, x: x + torch.zeros(x.shape[0], 1, 1)), ROWS, r"make tensors from others"),
    (_In(lambda m, x: x.expand(len(x), -1, -1)), ROWS, r"x.shape\[0\] in place of len"),
    (_In(lambda m, x: m.gru(x, torch.ones(1, 1, 6, dtype=x.dtype))[0]), ROWS, "leave the state"),
    (_In(_in_place), ROWS, "assigned: frames that it does not write are not zeros; .*zeros_like"),
    (_In(_one_frame), ROWS, "assigned: it writes single frames.*shift by slices"),
    (_In(lambda m, x: x.cumprod(1)), ROWS, "cumprod.*co.scan"),
    (_In(lambda m, x: x.cummax(1)[0]), ROWS, "cummax.*co.scan"),
    (_In(lambda m, x: x.roll(1, 1)), ROWS, "roll.*shift by slices and zeros"),
    (_In(lambda m, x: co.scan(x, 0.5, 1, x[:, 0])), ROWS, "takes frame 0|leave the start out"),
    (_In(lambda m, x: co.scan(x, torch.rand(12, 1), 1)), ROWS, "scan: .*has a row for each frame"),
    (
        _In(lambda m, x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]),
        ROWS, "truediv: arange has a row for each frame.*ones_like",
    ),
    (nets.Positioned(12), (1, 12, 8), "add: pos has a row for each frame.*recycling positions"),
]  # fmt: skip


@pytest.mark.parametrize(("net", "shape", "message"), REFUSED)
def test_refusals_name_the_cure(net, shape, message):
    with pytest.raises(co.ConversionError, match=message):
        co.convert(net.eval(), torch.randn(shape), 1)


def _remembered(memory: co.LongMemory, x: Tensor, y: Tensor) -> Tensor:
    """Return ``memory(x, y)`` computed from all rows at each step."""
    keys, values = memory.rows(x).unflatten(-1, (2, memory.num_heads, -1)).unbind(2)
    logits = torch.einsum("hme,bthe->bhmt", memory.queries, keys) / keys.shape[-1] ** 0.5
    outs = []
    for t in range(x.shape[1] - y.shape[1], x.shape[1]):
        age = t - torch.arange(t + 1, dtype=x.dtype)
        weights = (logits[..., : t + 1] + age * math.log(memory.decay)).softmax(-1)
        means = torch.einsum("bhmt,bthe->bmhe", weights, values[:, : t + 1]).flatten(2)
        newest = y[:, t - x.shape[1] + y.shape[1]]
        outs.append(newest + memory.reading.attend_changed(memory.norm(means), newest))
    return torch.stack(outs, 1)


@pytest.mark.parametrize(("decay", "scale"), [(1.0, 1), (0.97, 30), (0.3, 1)])
def test_a_long_memory_is_attention_to_all_rows(decay, scale):
    memory = co.LongMemory(6, 2, size=3, decay=decay).double()
    memory.queries.mul_(scale)
    x, y = (torch.randn(2, 70, 6, dtype=torch.float64) for _ in range(2))
    wanted = _remembered(memory, x, y)
    torch.testing.assert_close(memory(x, y), wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(memory(x, y[:, -9:]), wanted[:, -9:], rtol=0, atol=1e-9)
    state = memory.init_state(2)
    steps = [
        memory.forward_step(*rows, state) for rows in zip(x.unbind(1), y.unbind(1), strict=True)
    ]
    torch.testing.assert_close(torch.stack(steps, 1), wanted, rtol=0, atol=1e-9)
    state.reset([1])
    again = memory.forward_steps(x[:, :5], y[:, :5], state)
    torch.testing.assert_close(again[1], wanted[1, :5], rtol=0, atol=1e-9)
    with torch.enable_grad():
        memory(x, y).sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in memory.parameters())
    small = co.to_int8(memory.float(), least=1)(x.float(), y.float())
    torch.testing.assert_close(small.double(), wanted, rtol=0, atol=0.05)
    with pytest.raises(ValueError, match="memory 0 must be at least 1, memory_decay"):
        co.LongMemory(6, 2, size=0)
