"""Augmented training views of images with boxes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from costream.training.objects.augment import Cutout, cut, mirror, paste
from kit.data_objects import rectangle

SHAPES = [
    *((320, 192), (256, 192), (192, 192), (160, 192)),
    *((256, 128), (256, 160), (192, 160), (128, 192)),
]


def red(pixels: torch.Tensor) -> list[int]:
    """Where the rectangle is."""
    y, x = ((pixels[0] > 128) & (pixels[1] < 60)).nonzero().unbind(1)
    return [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(SHAPES), st.booleans())
def test_boxes_go_where_their_pixels_go(seed: int, shape: tuple[int, int], steady: bool) -> None:
    view = cut(rectangle(steady=steady), *shape, np.random.default_rng(seed))
    assert view.pixels.shape == (3, shape[1], shape[0])
    if len(view.boxes):
        assert view.boxes[0].tolist() == pytest.approx(red(view.pixels), abs=2.5)
        mirrored = mirror(view)
        assert mirrored.boxes[0].tolist() == pytest.approx(red(mirrored.pixels), abs=2.5)
        again = mirror(mirrored)
        torch.testing.assert_close(again.boxes, view.boxes)


@pytest.mark.parametrize("angle", [0.0, 0.6, math.pi / 2])
def test_what_is_pasted_is_inside_its_box(angle: float) -> None:
    thing = Cutout(torch.full((3, 40, 20), 250, dtype=torch.uint8), torch.ones(40, 20), 0)
    empty = torch.zeros(3, 120, 160, dtype=torch.uint8)
    done = 0
    for seed in range(8):
        pasted = paste(empty, thing, np.random.default_rng(seed), 60.0, angle)
        if pasted is None:
            continue
        pixels, box = pasted
        y, x = (pixels.amax(0) > 60).nonzero().unbind(1)
        around = [int(x.min()), int(y.min()), int(x.max()) + 1, int(y.max()) + 1]
        assert box.tolist() == pytest.approx(around, abs=2)
        whole = box[0] > 0 and box[1] > 0 and box[2] < 160 and box[3] < 120
        if whole and angle in (0.0, math.pi / 2):
            sides = (30, 60) if not angle else (60, 30)
            assert (box[2:] - box[:2]).tolist() == pytest.approx(sides, abs=3)
        done += 1
    assert done
    assert not empty.any()
