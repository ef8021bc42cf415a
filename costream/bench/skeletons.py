"""Benchmark of a continual skeleton network's step against other implementations."""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from costream.bench.peers import skeleton_peer
from costream.bench.timing import (
    Contender,
    fit_norms,
    measure,
    peer_name,
    quiet_torch,
    state_size,
    step_row,
)
from costream.core.tables import Cell, Table
from costream.models.skeleton.network import SkeletonNet
from costream.models.spec import model_spec

COLUMNS = ("way", "persons", "median us", "p10 us", "x bound", "MACs", "state bytes", "max error")
_COMPARED = 10  # steps after the window is full


def skeleton_steps_table(model: str, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of a network of the paper's size, against other implementations.

    ``rounds``: number of turns of each. Microseconds are of one step of one stream with a full
    window; "x bound" compares the median with that of the bound for the same number of persons;
    "max error" is the largest difference of a logit from the clip network in float64, relative
    to the largest logit.
    """
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        net = SkeletonNet(**model_spec(model).arguments or {})
        frames = 2 * net.layer_timing.receptive_field
        fit_norms(net, torch.randn(1, frames, net.persons, net.joints, net.channels))
        return compare(model, net, rounds, threads)


def compare(title: str, net: SkeletonNet, rounds: int, threads: int = 1) -> Table:
    """Return the table of a network without padding and strides; see ``skeleton_steps_table``."""
    frames = torch.randn(net.window + _COMPARED, 1, net.persons, net.joints, net.channels)
    alone = frames.clone()
    alone[:, :, 1:] = 0
    other = skeleton_peer(net, peer_name(), net.count_macs())
    ways = [
        (continual("costream", net, frames), net.persons),
        (continual("costream, one there", net, alone), 1),
        (other, net.persons),
        (clip(net, frames), net.persons),
        (bound(net, net.persons), net.persons),
        (bound(net, 1), 1),
    ]
    measured = [(way, persons) for way, persons in ways if way is not None]
    errors = _errors(measured, net, {net.persons: frames, 1: alone})
    times = measure([way for way, _ in measured], list(frames), rounds)
    base = {persons: statistics.median(times[way.name]) for way, persons in measured[-2:]}
    rows: list[tuple[Cell, ...]] = []
    for way, persons in ways:
        name, *cells = step_row(way, times, base[persons], errors)
        rows.append((name, persons if way else None, *cells))
    notes = (
        f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights.",
        f"The window has {net.window} frames. Of continual-inference there is only ST-GCN.",
        "Bound: only the step's products with weights, none of joints with each other.",
        "Max error: against the clip network in float64, relative to the largest logit.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def continual(name: str, net: SkeletonNet, frames: Tensor) -> Contender:
    """Return costream's step; it cycles through ``frames``, as persons may be absent."""
    state, turn = net.init_state(), itertools.cycle(frames)
    persons = int(frames.flatten(3).any(3).any(0).sum())

    def step(x: Tensor) -> Tensor:
        out = net.forward_step(next(turn), state)
        return x if out is None else out.logits

    size = state_size(state.tensors().values())
    return Contender(name, step, net.count_macs(persons), lambda: size)


def clip(net: SkeletonNet, frames: Tensor) -> Contender:
    """Return the clip network over the last frames, from the first full window on."""
    clips = torch.cat([frames, frames]).transpose(0, 1)
    turn = itertools.cycle(range(len(frames)))

    def step(x: Tensor) -> Tensor:
        start = next(turn)
        return cast(Tensor, net(clips[:, start : start + net.window]))

    size = net.window * frames[0].numel() * frames.element_size()
    return Contender("the clip recomputed", step, net.dense_macs, lambda: size)


def bound(net: SkeletonNet, persons: int) -> Contender:
    """Return the lower bound: only a step's products with weights, for ``persons`` persons."""
    matrices = [matrix for block in net.folded().blocks for matrix in block.matrices()]
    rows = persons * net.joints
    products = [(torch.randn(rows, len(matrix)), matrix) for matrix in matrices]

    def step(x: Tensor) -> Tensor:
        for given, matrix in products:
            torch.mm(given, matrix)
        return x

    macs = rows * sum(matrix.numel() for matrix in matrices)
    return Contender(f"bound: its products, {persons} there", step, macs, int)


def _errors(
    ways: Sequence[tuple[Contender, int]], net: SkeletonNet, frames: dict[int, Tensor]
) -> dict[str, float]:
    """Return each implementation's largest error with a full window; also fill the windows."""
    exact = copy.deepcopy(net).double()
    worst: dict[str, float] = {}
    for persons, given in frames.items():
        ends = (net.window - 1, len(given) - 1)
        clips = given.transpose(0, 1).double()
        truth = {t: exact(clips[:, t - net.window + 1 : t + 1]) for t in ends}
        for way in (way for way, seen in ways[:-2] if seen == persons):
            times = range(net.window - 1, net.window) if "clip" in way.name else range(len(given))
            for t in times:
                out = way.step(given[t])
                if t in truth:
                    error = (out - truth[t]).abs().max() / truth[t].abs().max()
                    worst[way.name] = max(worst.get(way.name, 0.0), float(error))
    return worst
