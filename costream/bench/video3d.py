"""Benchmark of a continual 3D network's step against other implementations."""

from __future__ import annotations

import copy
import itertools
import statistics
from typing import cast

import torch
from torch import Tensor

from costream.bench.peers import video_peer
from costream.bench.timing import (
    Contender,
    fit_norms,
    measure,
    peer_name,
    quiet_torch,
    state_size,
    step_row,
)
from costream.core.tables import Table
from costream.models.devices import find_device, find_dtype
from costream.models.spec import model_spec
from costream.models.video.video3d.network import VideoNet
from costream.nn.cuda_graph import GraphedStep
from costream.nn.fast import compile_chains

COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "state bytes", "max error")
_COMPARED = 4  # steps after the window is full


def video_steps_table(
    model: str, rounds: int = 60, threads: int = 1, device: str = "cpu", dtype: str = "float32"
) -> Table:
    """Return the timings of a network of the paper's size against other implementations, in turns.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream with a full
    window; "x costream" compares medians; "max error" is the largest difference of a classifier
    input from the step in float64, relative to the largest one. The clip network is a different
    function: it pads its clip with zeros and applies squeeze-and-excitation to the clip.
    """
    compile_chains()  # as a stream of many steps does by itself
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        net = VideoNet(**model_spec(model).arguments or {})
        size = net.encoder.size
        net.to(find_device(device))
        fit_norms(net, torch.randn(2, 8, 3, size, size, device=find_device(device)))
        return compare(model, net.to(find_dtype(dtype)), rounds, threads)


def compare(title: str, net: VideoNet, rounds: int, threads: int = 1) -> Table:
    """Return the table of a network; see ``video_steps_table``."""
    size, like = net.encoder.size, net.classifier.weight
    frames = list(torch.randn(net.window + _COMPARED, 1, 3, size, size).to(like))
    other = video_peer(net.encoder, peer_name(), net.encoder.count_macs())
    own, whole = continual(net), clip(net)
    stepped = [own] if other is None else [own, other]
    errors = _errors(stepped, net, frames)
    if like.is_cuda:  # each phase of the rings is recorded when it first comes
        for frame in frames:
            own.step(frame)
    times = measure([*stepped, whole], frames, rounds)
    base = statistics.median(times[own.name])
    rows = [step_row(way, times, base, errors) for way in (own, other, whole)]
    notes = (
        f"{threads} thread(s), {like.device}, {str(like.dtype)[6:]}, one stream, {rounds} rounds"
        " in turns, random weights,",
        f"without classifier. A clip has {net.encoder.pool * net.stride} frames of"
        f" {size} x {size} pixels; the window of a step has {net.window}.",
        "On a CPU, a step of X3D is a compiled program, as after some minutes of a stream.",
        "Of continual-inference there is only X3D.",
        "Max error: against costream's step in float64, relative to the largest number.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def continual(net: VideoNet) -> Contender:
    """Return costream's step."""
    encoder = net.encoder
    state = encoder.init_state()
    bytes_held = state_size(state.tensors().values())
    graphed = GraphedStep(encoder, state)

    def step(x: Tensor) -> Tensor:
        out = graphed(x) if x.is_cuda else encoder.forward_step(x, state)
        return x if out is None else cast(Tensor, out)

    return Contender("costream", step, encoder.count_macs(), lambda: bytes_held)


def clip(net: VideoNet) -> Contender:
    """Return the clip network over the frames whose features are averaged."""
    encoder = net.encoder
    count = encoder.pool * encoder.stride
    clips = torch.randn(2, 1, count, 3, encoder.size, encoder.size).to(net.classifier.weight)
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
