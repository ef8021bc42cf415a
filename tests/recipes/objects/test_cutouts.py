"""Cut-outs of moving objects in clips of a fixed camera."""

from __future__ import annotations

import pytest
import torch

from weights.recipes.objects.cutouts import (
    background,
    component_boxes,
    cut_out,
    foreground_mask,
    moving_object_boxes,
)


def test_what_passes_a_still_camera_is_cut_out() -> None:
    empty = torch.full((3, 120, 200), 80, dtype=torch.uint8)
    frames = []
    for k in range(9):
        frame = empty.clone()
        frame[:, 40:70, 10 + 20 * k : 30 + 20 * k] = 220
        frame[:, 90:, :60] += 35 * (k == 4)  # a shadow, or light: no thing
        frames.append(frame)
    assert torch.equal(background(frames), empty)
    assert len(component_boxes(foreground_mask(frames[4], empty))) == 2
    (box,) = moving_object_boxes(frames[4], empty)
    assert box.tolist() == pytest.approx([90, 40, 110, 70], abs=1)
    thing = cut_out(frames[4], foreground_mask(frames[4], empty), box, 1)
    assert thing is not None
    assert thing.mask.mean() > 0.9
    assert thing.pixels.min() > 200
    assert (
        cut_out(frames[4], foreground_mask(frames[4], empty), torch.tensor([0.0, 40, 20, 70]), 1)
        is None
    )
    assert moving_object_boxes(empty, empty) == []


def test_a_camera_that_trembles_and_adapts_sees_nothing_pass() -> None:
    empty = torch.full((3, 120, 200), 120, dtype=torch.uint8)
    empty[:, 50:56, 20:90] = 250  # a mark on the road
    shaken = torch.roll(empty, (2, -3), (1, 2))
    assert moving_object_boxes((shaken * 0.6).byte(), empty) == []
    frame = (shaken * 0.6).byte()
    frame[:, 70:110, 120:160] = 240
    (box,) = moving_object_boxes(frame, empty)
    assert box.tolist() == pytest.approx([120, 70, 160, 110], abs=1)
