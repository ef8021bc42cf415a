"""The data packs beside the repository; tests that need them skip without."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.paths import PACKS


def packs(*files: str) -> Path:
    """Return the folder of the packs; skip the test if one of these files is missing."""
    missing = [file for file in files if not (PACKS / file).is_file()]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} in ../shared/packs beside the repository")
    return PACKS
