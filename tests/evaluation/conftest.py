"""A small skeleton model with random weights, and motions for it."""

from __future__ import annotations

import pytest

from kit import data_skeleton


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A weight file of a network that was not trained."""
    return data_skeleton.write_tiny_weights(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="session")
def motions(tmp_path_factory):
    """A folder of classes with three tables each."""
    return data_skeleton.write_folder(tmp_path_factory.mktemp("motions"), 3)
