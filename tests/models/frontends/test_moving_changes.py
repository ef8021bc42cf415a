"""Features of how the moving part of a picture changes, beside a computation in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from costream.models.frontend import load_frontend

SIZE = 32


@pytest.fixture(scope="module")
def front() -> Any:
    torch.manual_seed(0)
    made: Any = load_frontend("moving-changes", width=0.25, size=SIZE)
    for module in made.modules():
        if isinstance(module, torch.nn.Conv2d):  # otherwise pictures hardly matter after 50 layers
            torch.nn.init.kaiming_normal_(module.weight)
    return made.eval().requires_grad_(False)


def film(steps: int, row: int, column: int) -> np.ndarray[Any, Any]:
    """Return pictures uint8 [T, 3, 2 S, 2 S] of a place where a bright square flickers."""
    rng = np.random.default_rng(0)
    place = rng.integers(0, 120, (3, 2 * SIZE, 2 * SIZE))
    pictures = np.repeat(place[None], steps, 0)
    for t in range(steps):
        pictures[t, :, row : row + 8, column : column + 8] += (0, 130, 30, 120, 60, 10)[t % 6]
    return pictures.astype(np.uint8)


def test_tokens_are_those_of_the_three_newest_differences(front: Any) -> None:
    """As red, green and blue, three times as large, in a part with the square."""
    pictures = film(6, 6, 50)
    tokens = front(torch.from_numpy(pictures)[None])[0]
    grey = pictures.astype(np.float64).mean(1)
    changes = [np.zeros_like(grey[0])] * 3 + list(np.abs(np.diff(grey, axis=0)))
    assert max(change.max() for change in changes) > 85  # some are cut off at 255
    whole = [
        (top, left) for top in range(7) for left in range(26, SIZE + 1)
    ]  # the square is in them
    for step in range(1, 6):
        newest = np.clip(3 * np.stack(changes[step : step + 3]), 0, 255).astype(np.float32)
        parts = np.stack([newest[:, y : y + SIZE, x : x + SIZE] for y, x in whole])
        assert (parts.sum((1, 2, 3)) == newest.sum()).all()
        expected = front.features(torch.from_numpy(parts))
        distances = (expected - tokens[step]).abs().amax(1) / expected.abs().amax()
        assert float(distances.min()) < 1e-4
        assert float(distances.max()) > 1e-3


def test_a_place_without_movement_is_the_same_whatever_it_shows(front: Any) -> None:
    rng = np.random.default_rng(1)
    still = rng.integers(0, 255, (2, 1, 3, 2 * SIZE, 2 * SIZE)).astype(np.uint8)
    first, second = front(torch.from_numpy(still.repeat(4, 1)))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(first[0], first[3])
