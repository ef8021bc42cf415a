"""Benchmark of the continual audio network's hop against recomputing its window."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from costream.bench.timing import Contender, measure, quiet_torch, timing_cells
from costream.core.tables import Cell, Table
from costream.models.audio.audio_net import ContinualAudioNet
from costream.models.oad.cooadtr import CoTrans
from costream.nn.fast import compile_blocks

COLUMNS = ("way", "median us", "p10 us", "x costream", "MACs", "max error")
_CHUNK = 16
_CLASSES = 10


def sound_steps_table(model: str, rounds: int = 60, threads: int = 1) -> Table:
    """Return the timings of a hop, shipped sizes and random weights, against recomputation.

    ``rounds``: number of turns of each. Microseconds are of one hop of one stream with a full
    window; "max error" is the largest difference of a logit from float64 over the sound,
    relative to the largest logit.
    """
    compile_blocks()  # as a stream of many hops does by itself
    with quiet_torch(threads), torch.inference_mode():
        torch.manual_seed(0)
        backbone = ContinualAudioNet().eval()
        backbone.mel.fill(backbone.sample_rate_hz, 50, 7800)
        head = CoTrans(_CLASSES).eval()
        return compare(model, backbone, head, rounds, threads)


def compare(
    title: str, backbone: ContinualAudioNet, head: CoTrans, rounds: int, threads: int = 1
) -> Table:
    """Return the table of a backbone and a temporal model; see ``sound_steps_table``."""
    hops = 2 * head.window
    wave = 0.1 * torch.randn(1, hops, backbone.block)
    exact = copy.deepcopy(head).double()(copy.deepcopy(backbone).double()(wave.double())).logits[0]
    context = -(-round(backbone.receptive_field_s * backbone.sample_rate_hz) // backbone.block)
    shared = head.count_macs()
    ways = [
        _way("costream", _continual(backbone, head), backbone.count_macs() + shared),
        _way(
            f"{backbone.pool} hops of a window recomputed",
            _recomputed(backbone, head, backbone.pool),
            backbone.dense_macs + shared,
        ),
        _way(
            f"the {context} hops that a token depends on",
            _recomputed(backbone, head, context),
            backbone.count_macs(context) + shared,
        ),
    ]
    errors = {way.name: _error(way, wave, exact) for way in ways}
    inputs = [_newest(wave, k, context) for k in range(head.window, hops)]
    times = measure(ways, inputs, rounds)
    times |= measure([_chunked(backbone, head)], [wave[:, :_CHUNK]], rounds)
    base = statistics.median(times["costream"])
    rows: list[tuple[Cell, ...]] = []
    for way in [*ways, _chunked(backbone, head)]:
        share = _CHUNK if way.name not in errors else 1
        numbers = timing_cells([t / share for t in times[way.name]], base)
        rows.append((way.name, *numbers, way.macs, errors.get(way.name)))
    notes = (
        f"{threads} thread(s), float32, one stream, {rounds} rounds in turns, random weights.",
        "The temporal model is compiled, as after 8,192 hops of a stream.",
        f"A hop is {backbone.block / backbone.sample_rate_hz:g} s; spectrogram, backbone and"
        " temporal model. A window alone lacks the context before it, hence its error.",
    )
    return Table(title, COLUMNS, tuple(rows), notes)


def _way(name: str, step: Callable[[Tensor], Tensor], macs: int) -> Contender:
    return Contender(name, step, macs, int)


def _continual(backbone: ContinualAudioNet, head: CoTrans) -> Callable[[Tensor], Tensor]:
    audio, memory = backbone.init_state(), head.init_state()

    def step(x: Tensor) -> Tensor:
        return head.forward_step(backbone.forward_step(x[:, -1], audio), memory).logits

    return step


def _recomputed(
    backbone: ContinualAudioNet, head: CoTrans, hops: int
) -> Callable[[Tensor], Tensor]:
    memory = head.init_state()

    def step(x: Tensor) -> Tensor:
        token = cast(Tensor, backbone(x[:, -hops:]))[:, -1]
        return head.forward_step(token, memory).logits

    return step


def _chunked(backbone: ContinualAudioNet, head: CoTrans) -> Contender:
    audio, memory = backbone.init_state(), head.init_state()

    def step(x: Tensor) -> Tensor:
        return head.forward_steps(backbone.forward_steps(x, audio), memory).logits

    macs = backbone.count_macs() + head.count_macs()
    return _way(f"costream, {_CHUNK} hops a call (files)", step, macs)


def _newest(wave: Tensor, hop: int, count: int) -> Tensor:
    """Return the last ``count`` hops up to this one, fewer at the start."""
    return wave[:, max(0, hop + 1 - count) : hop + 1]


def _error(way: Contender, wave: Tensor, exact: Tensor) -> float:
    outputs = [way.step(_newest(wave, k, 8)) for k in range(wave.shape[1])]
    return float((torch.cat(outputs) - exact).abs().max() / exact.abs().max())
