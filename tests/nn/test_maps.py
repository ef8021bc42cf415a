"""Convolutions at some places of maps, against those of whole maps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from costream.nn.boxes import MapLayout, convolve, flatten_maps, places_affected
from costream.nn.eventful.gates import Operations

side = st.integers(1, 7)
shapes = st.lists(st.tuples(side, side), min_size=1, max_size=3)


def listed(maps: list[Tensor]) -> tuple[MapLayout, Tensor]:
    """Return the layout and the rows of maps of one picture, the last one zeros."""
    layout, rows = flatten_maps(maps)
    return layout, F.pad(rows[0], (0, 0, 0, 1))


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.integers(0, 9))
def test_what_a_convolution_changes(sizes: list[tuple[int, int]], share: float, seed: int) -> None:
    torch.manual_seed(seed)
    masks = [(torch.rand(1, 1, *size) < share).float() for size in sizes]
    layout, rows = listed(masks)
    expected = listed([F.max_pool2d(mask, 3, 1, 1) for mask in masks])[1]
    changed = rows[:, 0] > 0
    given = places_affected(changed, layout, range(len(sizes)))
    if changed.sum() > 0.5 * layout.places:
        assert given[:-1].all()
        assert not given[-1]
    else:
        assert torch.equal(given, expected[:, 0] > 0)


@settings(max_examples=60, deadline=None)
@given(shapes, st.floats(0, 1), st.booleans(), st.integers(0, 9))
def test_convolutions_at_some_places(
    sizes: list[tuple[int, int]], share: float, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = nn.Conv2d(3, 2, 3, padding=1, bias=bias).double().requires_grad_(False)
    maps = [torch.randn(1, 3, *size, dtype=torch.float64) for size in sizes]
    layout, rows = listed(maps)
    expected = listed([layer(m) for m in maps])[1]
    changed = torch.rand(len(rows)) < share
    changed[-1] = False
    for levels in (range(len(sizes)), range(len(sizes) - 1, len(sizes))):
        operations = Operations()
        places, out = convolve(rows, layout, levels, changed, layer, operations)
        torch.testing.assert_close(out, expected[places])
        own = slice(layout.starts[levels[0]], len(rows))
        assert set(changed[own].nonzero().flatten().tolist()) <= set((places - own.start).tolist())
        assert operations.linear == len(places) * 54
        if len(places) < layout.places - own.start:
            assert len(places) == changed[own].sum()


def test_many_places_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 2, 3, padding=1).requires_grad_(False)
    maps = [torch.randn(1, 2, 20, 30)]
    layout, rows = listed(maps)
    changed = F.pad(torch.rand(600) < 0.3, (0, 1))
    monkeypatch.setattr("costream.nn.boxes._NUMBERS", 1)
    places, out = convolve(rows, layout, range(1), changed, layer, Operations())
    assert 64 < len(places) < 300
    torch.testing.assert_close(out, listed([layer(maps[0])])[1][places])
