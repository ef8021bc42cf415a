"""Benchmark of a continual 3D network's step against other implementations."""

from __future__ import annotations

import copy
import itertools
import statistics
from typing import cast

import torch
from torch import Tensor, nn

from costream.bench.encoders import measure, quiet_torch
from costream.bench.peer import peer_name
from costream.bench.timing import Contender
from costream.bench.video_ops import build_net
from costream.bench.video_peer import video_peer
from costream.models.video3d import VideoNet
from costream.tables import Cell, Table

MODELS = ("cox3d-s", "cox3d-m", "cox3d-l", "coslow", "coi3d")
COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "state bytes", "max error")
_COMPARED = 4  # steps after the window is full


def video_steps_table(model: str, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of one of ``MODELS`` against other implementations, in turns.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream with a full
    window; "x costream" compares medians; "max error" is the largest difference of a classifier
    input from the step in float64, relative to the largest one. The clip network is a different
    function: it pads its clip with zeros and applies squeeze-and-excitation to the whole clip.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        net = build_net(model.removeprefix("co"))
        fit_norms(net)
        return compare(model, net, rounds, threads)


def fit_norms(net: VideoNet) -> None:
    """Fit batch norms to noise, so that features have the magnitude of a trained network's."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.momentum = 1.0
    size = net.encoder.size
    net.train()(torch.randn(2, 8, 3, size, size))
    net.eval()


def compare(title: str, net: VideoNet, rounds: int, threads: int = 1) -> Table:
    """Return the table of a network; see ``video_steps_table``."""
    size = net.encoder.size
    frames = list(torch.randn(net.window + _COMPARED, 1, 3, size, size))
    other = video_peer(net.encoder, peer_name(), net.encoder.count_macs())
    ways = [continual(net), *([other] if other else []), clip(net)]
    errors = _errors(ways[:-1], net, frames)
    times = measure(ways, frames, rounds)
    base = statistics.median(times[ways[0].name])
    rows: list[tuple[Cell, ...]] = []
    for way in ways:
        given = sorted(times[way.name])
        middle, tenth = statistics.median(given), given[len(given) // 10]
        numbers = (round(middle, 1), round(tenth, 1), round(middle / base, 2))
        rows.append((way.name, *numbers, way.macs, way.state_bytes(), errors.get(way.name)))
    if other is None:
        rows.insert(1, (peer_name(), *[None] * (len(COLUMNS) - 1)))
    notes = (
        f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights,",
        f"without classifier. A clip has {net.encoder.pool * net.stride} frames of"
        f" {size} x {size} pixels; the window of a step has {net.window}.",
        "Of continual-inference there is only X3D.",
        "Max error: against costream's step in float64, relative to the largest number.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def continual(net: VideoNet) -> Contender:
    """Return costream's own step."""
    encoder = net.encoder
    state = encoder.init_state()
    bytes_held = sum(t.numel() * t.element_size() for t in state.tensors().values())

    def step(x: Tensor) -> Tensor:
        out = encoder.forward_step(x, state)
        return x if out is None else out

    return Contender("costream", step, encoder.count_macs(), lambda: bytes_held)


def clip(net: VideoNet) -> Contender:
    """Return the clip network over the frames whose features are averaged."""
    encoder = net.encoder
    count = encoder.pool * encoder.stride
    clips = torch.randn(2, 1, count, 3, encoder.size, encoder.size)
    turn = itertools.cycle(clips)
    held = clips[0].numel() * clips.element_size()
    macs = encoder.count_clip_macs(count)

    def step(x: Tensor) -> Tensor:
        return cast(Tensor, encoder(next(turn)))

    return Contender("the clip recomputed", step, macs, lambda: held)


def _errors(ways: list[Contender], net: VideoNet, frames: list[Tensor]) -> dict[str, float]:
    """Return each implementation's largest error with a full window; also fill the windows."""
    exact = copy.deepcopy(net.encoder).double()
    state, worst = exact.init_state(), dict.fromkeys((way.name for way in ways), 0.0)
    for number, frame in enumerate(frames):
        truth = exact.forward_step(frame.double(), state)
        for way in ways:
            out = way.step(frame)
            if truth is not None and number >= net.window - 1:
                error = float((out - truth).abs().max() / truth.abs().max())
                worst[way.name] = max(worst[way.name], error)
    return worst
