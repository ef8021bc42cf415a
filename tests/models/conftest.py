"""The same random numbers in every test; without gradients in files that ask for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def small_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bring attention up to date even in frames so small that it would be computed anew."""
    monkeypatch.setattr("costream.nn.eventful.exact_update.OVERHEAD", 0)
