"""Media that several test files look at, made once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.media import busy, make_video


@pytest.fixture(scope="session")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of intact files: see the names below."""
    folder = tmp_path_factory.mktemp("media")
    make_video(folder / "plain.mp4", 60)
    make_video(folder / "plain.mkv", 60)
    make_video(folder / "plain.ts", 60)
    faststart = {"movflags": "faststart"}
    make_video(folder / "busy.mp4", 250, pattern=busy, container_options=faststart)
    make_video(folder / "busy.mkv", 250, pattern=busy)
    make_video(folder / "busy.ts", 250, pattern=busy)
    rng = np.random.default_rng(0)
    np.save(folder / "features.npy", rng.normal(size=(60, 8)).astype(np.float32))
    return folder
