"""Settings of ``costream train`` as the command line makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from costream.training.base import TrainSettings


def train_settings(output: Path, **changes: Any) -> TrainSettings:
    """Return the default settings with these changes."""
    fixed: dict[str, Any] = dict.fromkeys(TrainSettings.__dataclass_fields__)
    fixed |= {"output": output, "seed": 0, "scratch": False, "validation": 0.2, "threads": 1}
    fixed |= {"adapter": "none", "rank": 8, "density": 1.0, "device": "cpu"}
    return TrainSettings(**{**fixed, **changes})
