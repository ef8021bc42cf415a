"""costream: continual inference over video, audio and skeletons, one step at a time.

The public API is loaded on first use, so that ``import costream`` is fast:

``open_source(uri, ...)`` opens a file or stream, ``load_model(name, ...)`` loads weights, and
``run(source, model, sinks, ...)`` drives one through the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costream.version import __version__

if TYPE_CHECKING:
    from costream.models.registry import load_model
    from costream.runtime.pipeline import run
    from costream.sources.registry import open_source

__all__ = ["__version__", "load_model", "open_source", "run"]
_HOME = {
    "load_model": "costream.models.registry",
    "open_source": "costream.sources.registry",
    "run": "costream.runtime.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'costream' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
