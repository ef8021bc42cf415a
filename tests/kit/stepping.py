"""Stepping a continual block through a clip: one step at a time, or in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

# Lengths of chunks, repeated until the clip ends; 0 stands for a single step.
chunkings = st.lists(st.integers(0, 40), min_size=1, max_size=4)
# Positions between the time and the features of a clip: none, one, many, an image.
places = st.sampled_from([(), (1,), (5,), (2, 3)])


def fresh(block: Any, x: Tensor) -> Any:
    """The state for a clip [B, T, ..., C]; convolutions know their width and type."""
    if hasattr(block, "weight"):
        return block.init_state(x.shape[0], math.prod(x.shape[2:-1]))
    return block.init_state(x.shape[0], x.shape[2:], x)


def by_steps(block: Any, x: Tensor, state: Any) -> dict[int, Tensor]:
    """The output at each step that has one."""
    outputs = ((t, block.forward_step(row, state)) for t, row in enumerate(x.unbind(1)))
    return {t: out for t, out in outputs if out is not None}


def by_chunks(block: Any, x: Tensor, state: Any, lengths: Iterable[int]) -> Tensor:
    """All outputs together, from ``forward_steps``, or ``forward_step`` where a length is 0."""
    outputs, lengths, at, k = [block.forward_steps(x[:, :0], state)], tuple(lengths), 0, 0
    while at < x.shape[1]:
        length = lengths[k % len(lengths)]
        if length:
            outputs.append(block.forward_steps(x[:, at : at + length], state))
        elif (out := block.forward_step(x[:, at], state)) is not None:
            outputs.append(out.unsqueeze(1))
        at, k = at + max(1, length), k + 1
    return torch.cat(outputs, 1)


def check(block: Any, x: Tensor, expected: Tensor, chunks: list[int]) -> None:
    """Steps and chunks give ``expected`` [B, T', ..., C], output by output at its step."""
    outputs = by_steps(block, x, fresh(block, x))
    assert list(outputs) == list(range(block.delay, x.shape[1], block.stride))
    stepped = torch.stack(list(outputs.values()), 1) if outputs else expected[:, :0]
    torch.testing.assert_close(stepped, expected, rtol=0, atol=1e-12)
    chunked = by_chunks(block, x, fresh(block, x), chunks)
    torch.testing.assert_close(chunked, expected, rtol=0, atol=1e-12)


def check_part(part: Any, clip: Tensor, chunks: list[int], *, atol: float = 1e-9) -> None:
    """Steps, chunks and a stream that joins late give what the part gives for a clip, in float64.

    Outputs come at the steps that ``part.timing`` says, and at no others.
    """
    axis, out_axis = part.axis, getattr(part, "out_axis", part.axis)
    whole, count = part(clip), part.timing.count_outputs(clip.shape[axis])
    frame = clip.select(axis, 0)
    state = part.init_state(len(clip), frame)
    outs = {t: part.forward_step(x, state) for t, x in enumerate(clip.unbind(axis))}
    given = {t: out for t, out in outs.items() if out is not None}
    assert list(given) == list(range(max(0, part.delay), clip.shape[axis], part.stride))
    state, done, pieces, k = part.init_state(len(clip), frame), 0, [], 0
    while done < clip.shape[axis]:
        size = min(max(1, chunks[k % len(chunks)]), clip.shape[axis] - done)
        pieces.append(part.forward_steps(clip.narrow(axis, done, size), state))
        done, k = done + size, k + 1
    chunked = torch.cat(pieces, out_axis)
    assert chunked.shape[out_axis] == count == len(given)
    if not given:
        return
    stepped = torch.stack(list(given.values()), out_axis)
    torch.testing.assert_close(chunked, stepped, rtol=0, atol=atol)
    common = min(count, whole.shape[out_axis])
    assert common or not whole.numel()
    cut = whole.narrow(out_axis, 0, common)
    torch.testing.assert_close(stepped.narrow(out_axis, 0, common), cut, rtol=0, atol=atol)
    state = part.init_state(len(clip), frame)
    laps = min(3, clip.shape[axis] // part.stride)
    for x in clip.unbind(axis)[: part.stride * laps]:
        part.forward_step(x, state)
    state.reset([len(clip) - 1])
    late = [part.forward_step(x, state) for x in clip.unbind(axis)]
    late = [out[-1:] for t, out in enumerate(late) if out is not None and t >= part.delay]
    torch.testing.assert_close(torch.stack(late, out_axis), stepped[-1:], rtol=0, atol=atol)
