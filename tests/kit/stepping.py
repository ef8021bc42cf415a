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
