"""Benchmark of conversion: a step of a converted network and its clip recomputed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from costream.bench.timing import fit_norms, quiet_torch
from costream.core.tables import Table
from costream.nn.block import EncoderConfig
from costream.nn.continual import Continual
from costream.nn.conversion import convert
from costream.nn.deepcot import DeepEncoder
from costream.nn.int8_layers import to_int8
from costream.nn.state import State
from costream.nn.video3d.encoder import VideoEncoder
from costream.nn.video3d.sizes import find_size

COLUMNS = ("network", "frames", "clip ms", "step ms", "clip / step", "delay", "error")


class _ResidualBlock(nn.Module):
    """A block of R3D: two convolutions of 3 x 3 x 3 and a shortcut."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv3d(i, o, 3, stride, 1, bias=False), nn.BatchNorm3d(o)
        self.conv2, self.bn2 = nn.Conv3d(o, o, 3, 1, 1, bias=False), nn.BatchNorm3d(o)
        self.shortcut = nn.Conv3d(i, o, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a clip [B, C, T, H, W]."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def r3d_18() -> nn.Module:
    """Return R3D-18 (Tran et al., "A closer look at spatiotemporal convolutions", CVPR 2018)."""
    stem = nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
    sizes = [(64, 64, 1), (64, 64, 1)]
    for k in range(3):
        sizes += [(64 * 2**k, 128 * 2**k, 2), (128 * 2**k, 128 * 2**k, 1)]
    blocks = [_ResidualBlock(*size) for size in sizes]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400)]
    return nn.Sequential(stem, nn.BatchNorm3d(64), nn.ReLU(), *blocks, *head)


class _WaveNet(nn.Module):
    """Thirty gated, dilated, causal layers of 64 channels with skips."""

    def __init__(self) -> None:
        super().__init__()
        self.dilations = [2 ** (k % 10) for k in range(30)]
        self.gates = nn.ModuleList(nn.Conv1d(64, 128, 2, dilation=d) for d in self.dilations)
        self.outs = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in self.dilations)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [B, 64, T] of a clip [B, 64, T]."""
        skips: Any = 0
        for gate, out, dilation in zip(self.gates, self.outs, self.dilations, strict=True):
            a, b = gate(F.pad(x, (dilation, 0))).chunk(2, dim=1)
            y = out(torch.tanh(a) * torch.sigmoid(b))
            x, skips = x + y, skips + y
        return F.relu(skips)


class _PlainX3d(nn.Module):
    """X3D-S as an ordinary module, with the paddings of the continual one."""

    def __init__(self, net: VideoEncoder) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [B, C, T', 1, 1] of clips [B, T, 3, H, W]."""
        return self.net._features(x, "zeros").mean((3, 4), keepdim=True)


class _Case(NamedTuple):
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of a clip
    axis: int
    small: tuple[int, ...]  # of a clip to convert with
    approximate: tuple[str, ...] = ()


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, 12)


def _x3d() -> nn.Module:
    size = find_size("cox3d-s")
    assert size is not None
    return _PlainX3d(VideoEncoder(**size.arguments(), pool=1))


CASES = (
    _Case("R3D-18", r3d_18, (1, 3, 16, 112, 112), 2, (1, 3, 16, 32, 32), ("running mean",)),
    _Case("X3D-S", _x3d, (1, 13, 3, 160, 160), 1, (1, 48, 3, 32, 32)),
    _Case("WaveNet, 30 layers", _WaveNet, (1, 64, 3070), 2, (1, 64, 40)),
    _Case("transformer", _transformer, (1, 512, 768), 1, (1, 8, 768), ("windowed attention",)),
)


ROFORMER = EncoderConfig(768, 12, 3072, 12, 512)


def conversion_table(rounds: int = 5, threads: int = 1) -> Table:
    """Return the timings of converted networks with random weights: also of 12 layers of width 768.

    These are ordinary ones, and last RoFormer's as a DeepCoT, with float32 and with int8 weights,
    whose clip is its window of 512 rows recomputed in float32, rotary positions included.

    ``rounds``: clips, and groups of steps, of which the medians are given. A step is the mean over
    a stride. "error" is from the check of the conversion, clip against steps, in float64.
    """
    rows: list[tuple[Any, ...]] = []
    with quiet_torch(threads), torch.no_grad():
        for case in CASES:
            torch.manual_seed(0)
            module, clip = case.make().eval(), torch.randn(case.shape)
            ordinary = module.net if isinstance(module, _PlainX3d) else module
            if len(case.shape) == 5:
                fit_norms(ordinary, clip)
            window = clip.shape[case.axis]
            net = convert(
                module,
                torch.randn(case.small),
                case.axis,
                approximate=case.approximate,
                window=window,
            )
            rows.append(_row(case, ordinary, net, clip, rounds))
            if isinstance(module, _PlainX3d):
                rows += _hand_made(module.net, net, clip, rows.pop(), rounds)
        more, bound = _roformer(rounds)
    note = f"{threads} thread(s), float32, one stream, medians of {rounds} rounds, random weights"
    return Table("conversion", COLUMNS, (*rows, *more), (note, bound))


def _row(
    case: _Case, module: nn.Module, net: Continual, clip: Tensor, rounds: int
) -> tuple[Any, ...]:
    frames = clip.unbind(case.axis)
    state = net.init_state(1, frames[0])
    for _ in range(1 + net.delay // len(frames)):  # before its first output a step does less
        net.forward_steps(clip, state)

    def steps() -> None:
        for k in range(net.stride):
            net.forward_step(frames[k % len(frames)], state)

    whole, step = _median(lambda: module(clip), rounds), _median(steps, 4 * rounds) / net.stride
    error = f"{net.report().error:.0e}"
    count = clip.shape[case.axis]
    return (case.name, count, _ms(whole), _ms(step), round(whole / step, 1), net.delay, error)


def _hand_made(
    made: VideoEncoder, net: Continual, clip: Tensor, row: tuple[Any, ...], rounds: int
) -> list[tuple[Any, ...]]:
    """Return the rows of the converted X3D-S and of costream's ``cox3d-s``, timed in turns."""
    frame, (name, count, whole, _, _, delay, error) = clip[:, 0], row
    steps: list[tuple[Callable[..., Any], State]] = [
        (net.forward_step, net.init_state(1, frame)),
        (made.forward_step, made.init_state()),
    ]
    times: list[list[float]] = [[], []]
    for call, state in steps * (delay + 1):
        call(frame, state)
    for _ in range(rounds):
        for (call, state), own in zip(steps, times, strict=True):
            own.append(_median(partial(call, frame, state), 4))
    found = [_ms(statistics.median(own)) for own in times]
    names, errors = (name, f"{name}, hand-made"), (error, "")
    return [
        (title, count, whole, ms, round(whole / ms, 1), delay, text)
        for title, ms, text in zip(names, found, errors, strict=True)
    ]


def _roformer(rounds: int) -> tuple[list[tuple[Any, ...]], str]:
    """Return the rows of 12 layers with rotary positions (Su et al., RoFormer, 2021).

    The second has int8 weights; its error is that of its newest output, relative to the float32
    one. Also a line on how long reading the weights alone takes, the sum of as many numbers: a
    step takes no less.
    """
    net = DeepEncoder(ROFORMER, rotary=True).eval()
    clip = torch.randn(1, net.window, net.embed_dim)
    state = net.init_state()
    replay = net.forward_steps(clip, state)
    error = float((replay - net(clip)).abs().max())
    whole = _median(lambda: window_with_sdpa(net, clip), rounds)
    weights = torch.ones(sum(p.numel() for p in net.parameters()))
    reading = _median(weights.sum, 4 * rounds)
    size = 4 * weights.numel()
    bound = f"RoFormer: its {size / 1e6:.0f} MB of float32 weights are read in {_ms(reading)} ms"
    bound += f" ({size / 1e9 / reading:.1f} GB/s), a quarter of them, int8, in {_ms(reading / 4)}"
    rows = []
    for name in ("RoFormer", "RoFormer, int8"):
        if name != "RoFormer":
            to_int8(net)
            small = net.forward_steps(clip, net.init_state())[:, -1]
            error = float((small - replay[:, -1]).norm() / replay[:, -1].norm())
        step = _median(lambda: net.forward_step(clip[:, 0], state), 4 * rounds)
        times = round(whole / step, 1)
        rows.append((name, net.window, _ms(whole), _ms(step), times, net.delay, f"{error:.0e}"))
    return rows, bound


def window_with_sdpa(net: DeepEncoder, rows: Tensor) -> Tensor:
    """Return the newest output [B, d] of ordinary layers over all of ``rows`` [B, n, d]."""
    turns = net.rotary and net.rotary.turns(torch.arange(rows.shape[1]), rows)
    for block in net._blocks:
        attention = block.self_attn
        projected = attention.project(block.before_attention(rows), turns).unbind(2)
        q, k, v = (x.transpose(1, 2) for x in projected)
        attended = F.scaled_dot_product_attention(q, k, v, scale=1.0)  # keys are scaled already
        rows = block.after_attention(rows, attention.out_proj(attended.transpose(1, 2).flatten(2)))
    return net.normalise(rows[:, -1])


def _median(call: Callable[[], object], rounds: int) -> float:
    """Return the median seconds of a call, after a first one."""
    call()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
