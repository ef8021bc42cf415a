"""Benchmark of the published networks that are fetched: a step and the published way."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from costream.bench.timing import Contender, measure, quiet_torch, state_size, step_row
from costream.core.tables import Table
from costream.models.audio.efficientat import EfficientAt
from costream.models.audio.windows import SpectrogramWindows
from costream.models.audio.yamnet import YamNet
from costream.models.eventful.backbone import BackboneState
from costream.models.eventful.rf_detr import RfDetr
from costream.models.eventful.yolos import Yolos
from costream.models.spec import model_spec
from costream.models.video.movinet.network import MoViNet
from costream.nn.eventful.counts import Operations
from costream.nn.eventful.policies import TopTokens
from costream.nn.state import State

COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "state bytes")
PICTURES = {"yolos": (480, 848), "rf": (384, 384)}  # height and width of frames
_SHARES = (("a quarter", 4), ("a tenth", 10))
_CHANGED = (120, 200)  # height and width of what is new in each frame


def published_steps_table(model: str, rounds: int = 10, threads: int = 1) -> Table:
    """Return the timings of a step of a network, random weights, and of the published way.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        arguments = model_spec(model).arguments or {}
        kind = model.partition("-")[0]
        if kind in ("yamnet", "efficientat"):
            listener = YamNet if kind == "yamnet" else EfficientAt
            ways, inputs, note = sound_ways(listener(**arguments).eval())
        elif kind == "movinet":
            ways, inputs, note = action_ways(MoViNet(**arguments).eval())
        else:
            net = Yolos(**arguments) if kind == "yolos" else RfDetr(**arguments)
            ways, inputs, note = object_ways(net.eval(), *PICTURES[kind])
        times = measure(ways, inputs, rounds)
    base = statistics.median(times[ways[0].name])
    rows = tuple(step_row(way, times, base)[:-1] for way in ways)
    setting = f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights"
    return Table(model, COLUMNS, rows, (setting, note))


Ways = tuple[list[Contender], Sequence[Tensor], str]


def sound_ways(net: SpectrogramWindows) -> Ways:
    """Return a hop alone, and hops of a file, sixteen at a time: both are the published windows."""
    state, many = net.init_state(), net.init_state()
    hops = [torch.randn(1, net.hop_frames, net.bands) for _ in range(4)]
    chunk = torch.randn(1, 16, net.hop_frames, net.bands)
    ways = [
        _contender(
            "costream", lambda x: net.forward_step(x, state).logits, net.count_macs(), state
        ),
        _contender(
            "16 hops at once",
            lambda x: net.forward_steps(chunk, many)[0],
            16 * net.count_macs(),
            many,
        ),
    ]
    return ways, hops, f"A hop computes its window of {net.window_frames} frames, as published."


def action_ways(net: MoViNet) -> Ways:
    """Return a frame, and the clip of the last frames recomputed."""
    state = net.init_state()
    frames = [torch.rand(1, 3, net.size, net.size) for _ in range(2)]
    clip = torch.rand(1, net.window, 3, net.size, net.size)
    ways = [
        _contender(
            "costream", lambda x: net.forward_step(x, state).logits, net.count_macs(), state
        ),
        _contender("the clip recomputed", lambda x: net(clip), net.dense_macs, None),
    ]
    return ways, frames, f"A clip has {net.window} frames of {net.size} x {net.size} pixels."


def object_ways(net: Yolos | RfDetr, height: int, width: int) -> Ways:
    """Return a frame with some of its patches, and the frame alone as published."""
    frames, size, rest = [torch.randn(1, 3, height, width)], (height, width), Operations()
    rows, columns = min(_CHANGED[0], height), min(_CHANGED[1], width)
    for top, left in itertools.product((0, height - rows), (0, width - columns)):
        frames.append(frames[-1].clone())
        frames[-1][:, :, top : top + rows, left : left + columns] = torch.randn(3, rows, columns)
    grid = (height // net.patch, width // net.patch)
    patches = [net.embed(frame) for frame in frames]

    def found(view: Any) -> Tensor:
        return net.detect(view, size, rest)[0].boxes

    found(net.encode(patches[0]))
    after, ways = rest.total, []
    for name, parts in _SHARES:
        state, count = net.init_state(1, height, width), grid[0] * grid[1] // parts

        def step(x: Tensor, state: BackboneState = state, count: int = count) -> Tensor:
            return found(net.view_step(x, state, TopTokens(count), Operations()))

        title = f"costream, {name} of the patches"
        ways.append(_contender(title, step, after + net.count_macs(*grid, count), state))
    macs = after + net.count_macs(*grid)
    ways.append(_contender("the frame alone", lambda x: found(net.encode(x)), macs, None))
    note = f"Frames of {width} x {height} pixels, of which {columns} x {rows} are new, from patches"
    return ways, patches, f"{note} to boxes."


def _contender(
    name: str, step: Callable[[Tensor], Tensor], macs: int, state: State | None
) -> Contender:
    held = 0 if state is None else state_size(state.tensors().values())
    return Contender(name, step, macs, lambda: held)
