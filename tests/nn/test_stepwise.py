"""Batch normalisation in a training that takes one frame of each clip at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import costream.nn as co


@pytest.mark.parametrize("steps", [1, 8, 64])
def test_statistics_forget_as_much_in_a_clip_of_steps_as_in_a_clip(steps: int) -> None:
    clip, step = nn.BatchNorm3d(4, momentum=0.1), nn.BatchNorm3d(4, momentum=0.1)
    net = co.stepwise_momentum(nn.Sequential(step, nn.BatchNorm1d(2, momentum=None)), steps)
    assert step.momentum == pytest.approx(2 / (1 + steps * 19))
    assert net[1].momentum is None
    x = torch.full((2, 4, steps, 3, 3), 5.0)
    for _ in range(20):
        clip(x)
        for frame in x.split(1, 2):
            step(frame)
    # What is left of the first statistics, zeros, differs by less than a percent of the mean.
    assert step.running_mean is not None
    assert clip.running_mean is not None
    torch.testing.assert_close(step.running_mean, clip.running_mean, rtol=0.01, atol=0)


def test_less_than_a_step_is_refused() -> None:
    with pytest.raises(ValueError, match="0 steps: at least 1"):
        co.stepwise_momentum(nn.BatchNorm1d(2), 0)
