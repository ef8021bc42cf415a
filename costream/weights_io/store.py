"""Folders of weights (shipped, cache, environment) and samples; published checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from costream.weights_io.published import FILE, Published, read_published

VARIABLE = "COSTREAM_WEIGHTS"
# The weights for research are a second package, so that the first is free for any use.
RESEARCH_PACKAGE = "costream-research-weights"
INSTALL_RESEARCH = f"pip install {RESEARCH_PACKAGE} (in a clone: pip install ./weights/research)"
# What is in it, with the terms in a few words; the cards have all of them.
RESEARCH_WEIGHTS = {
    **dict.fromkeys(
        ("cooadtr", "cooadtr-b2", "oadtr"), "research use only (fir_action states no licence)"
    ),
    **dict.fromkeys(
        ("costgcn", "costgcn-2d", "costgcn-pairs"), "research use only, parts CC BY-NC 4.0"
    ),
    **dict.fromkeys(("cosounds", "cotrans"), "research use only, not commercial"),
    "eventful-vitdet": "research use only",
}


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
    """Return the folder of the weights shipped with costream, which are free for any use."""
    return _shipped("weights")


def research_folder() -> Path | None:
    """Return the folder of the weights for research; None: their package is not installed.

    A clone has it in the folder of the shipped weights.
    """
    inside = shipped_folder() / "research"
    if inside.is_dir():
        return inside
    spec = find_spec(RESEARCH_PACKAGE.replace("-", "_"))
    places = [] if spec is None else spec.submodule_search_locations or []
    return next((Path(place) for place in places), None)


def is_shipped(path: Path) -> bool:
    """Return whether a weight file is that of one of the two packages."""
    return path.parent in (shipped_folder(), research_folder())


def shipped_file(name: str) -> Path | None:
    """Return a file of one of the two packages of weights; None: it is not installed."""
    folders = filter(None, (shipped_folder(), research_folder()))
    return next((path for path in (each / name for each in folders) if path.is_file()), None)


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
    research = research_folder()
    if research is not None:
        yield "research", research
