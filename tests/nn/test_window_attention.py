from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from costream.nn.eventful.attention import (
    RelativePosition,
    TokenWindows,
    WindowAttention,
    attend_frame_windows,
)
from costream.nn.eventful.gates import ChosenTokens, Operations
from kit.eventful_nets import randomise


def brute_force(
    qkv: Tensor, windows: TokenWindows, position: RelativePosition, bias: Tensor
) -> Tensor:
    """Every query by itself over the keys of its window, those beyond the frame too."""
    (h, w), dim = windows.size, qkv.shape[1] // 3
    e = dim // windows.heads
    out = torch.zeros(len(qkv), dim, dtype=torch.float64)
    grid = qkv.double().view(windows.height, windows.width, 3, windows.heads, e)
    fill = bias.double().view(3, windows.heads, e)
    y_table, x_table = position.y_embedding.double(), position.x_embedding.double()
    for y in range(windows.height):
        for x in range(windows.width):
            for head in range(windows.heads):
                q = grid[y, x, 0, head]
                scores, values = [], []
                for i in range(y // h * h, y // h * h + h):
                    for j in range(x // w * w, x // w * w + w):
                        inside = i < windows.height and j < windows.width
                        _, k, v = (grid[i, j] if inside else fill)[:, head]
                        along = y_table[y - i + h - 1] + x_table[x - j + w - 1]
                        scores.append(q @ k / e**0.5 + q @ along)
                        values.append(v)
                weights = torch.stack(scores).softmax(0)
                place = y * windows.width + x
                out[place, head * e : head * e + e] = weights @ torch.stack(values)
    return out


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_every_query_attends_to_its_window(
    height: int, width: int, h: int, w: int, skip: bool
) -> None:
    torch.manual_seed(height * 7 + width)
    windows = TokenWindows(height, width, 2, (h, w))
    position, bias = randomise(RelativePosition((h, w), 3)), torch.randn(18)
    n = height * width
    qkv, attention = torch.randn(1, n, 18), WindowAttention(skip)
    state, buffer = attention.init_state(1, windows, torch.zeros(6)), torch.zeros(1, n, 18)
    tokens = torch.arange(n)
    for _ in range(3):
        new = torch.randn(len(tokens), 18)
        qkv[0, tokens] = new
        chosen = ChosenTokens((tokens,), (False,), tokens)
        arguments = windows, position, bias, Operations()
        out = attention.step(buffer, new, chosen, state, *arguments)[0]
        expected = brute_force(qkv[0], windows, position, bias)
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
        tokens = torch.randperm(n)[: n // 3].sort().values
    whole = attend_frame_windows(qkv.expand(2, -1, -1), windows, position, bias)
    torch.testing.assert_close(whole[1].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("skip", "computed"), [(True, 2), (False, 6)])
def test_only_windows_with_a_changed_token_cost_anything(skip: bool, computed: int) -> None:
    windows, operations = TokenWindows(6, 9, 2, (3, 3)), Operations()
    attention, position = WindowAttention(skip), RelativePosition((3, 3), 3)
    state, buffer = attention.init_state(1, windows, torch.zeros(6)), torch.zeros(1, 54, 18)
    tokens = torch.tensor([0, 10, 53])
    chosen = ChosenTokens((tokens,), (False,), tokens)
    new = torch.randn(3, 18)
    attention.step(buffer, new, chosen, state, windows, position, torch.zeros(18), operations)
    assert operations.product == 2 * computed * 9 * 9 * 6
    assert operations.position == computed * 9 * 6 * 6
    assert operations.add == 2 * 2 * computed * 81
    assert operations.bias == 0


def test_windows_that_go_beyond_the_frame() -> None:
    windows = TokenWindows(4, 5, 1, (3, 3))
    assert (windows.counts, windows.padded) == ((2, 2), 36)
    assert windows.tokens().tolist() == [
        [0, 1, 2, 5, 6, 7, 10, 11, 12],
        [3, 4, -1, 8, 9, -1, 13, 14, -1],
        [15, 16, 17, -1, -1, -1, -1, -1, -1],
        [18, 19, -1, -1, -1, -1, -1, -1, -1],
    ]
    assert windows.of_tokens()[[0, 4, 15, 19]].tolist() == [0, 1, 2, 3]
