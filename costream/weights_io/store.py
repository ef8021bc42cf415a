"""Folders of weights (shipped, cache, environment) and samples; published checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from costream.weights_io.published import FILE, Published, read_published

VARIABLE = "COSTREAM_WEIGHTS"


def cache_folder() -> Path:
    """Return the folder for imported and fetched weights, by platform convention."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "costream" / "cache" / "weights"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "costream" / "weights"
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))  # the convention: only if absolute
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "costream" / "weights"


def shipped_folder() -> Path:
    """Return the folder of the weights shipped with costream."""
    return _shipped("weights")


def samples_folder() -> Path:
    """Return the folder of the samples shipped with costream; cards state scores on them."""
    return _shipped("samples")


def _shipped(name: str) -> Path:
    package = Path(__file__).resolve().parents[1]
    inside = package / name  # an installed package; a clone has it next to the package
    return inside if inside.is_dir() else package.parent / name


def downloads_folder() -> Path:
    """Return the folder of downloads, with one folder per checkpoint."""
    return cache_folder().parent / "downloads"


def published() -> dict[str, Published]:
    """Return the published checkpoints that this installation lists, by name."""
    table = shipped_folder() / FILE
    return read_published(table) if table.is_file() else {}


def weight_folders() -> Iterator[tuple[str, Path]]:
    """Yield origin and path of the folders that hold weights, first match first."""
    variable = os.environ.get(VARIABLE)
    if variable and Path(variable).expanduser().is_dir():
        yield "environment", Path(variable).expanduser()
    if os.access(cache_folder(), os.R_OK | os.X_OK):  # it may be in the home of another user
        yield "cache", cache_folder()
    yield "shipped", shipped_folder()
