"""costream: continual inference over video, audio, skeletons and text, one step at a time.

The public API, loaded on first use, so that ``import costream`` is fast:

``detect``, ``listen``, ``read`` and ``watch`` run over sources and yield records; ``load_model``
loads a model once for many runs, and for streams of one's own. ``Results.read`` reads results back.
``costream help python`` has ten examples.
"""

from __future__ import annotations

from costream.core.version import __version__

TYPE_CHECKING = False  # as that of typing, whose import would come before the program's handlers
if TYPE_CHECKING:
    from costream.api.feeds import FeedRecords, watch
    from costream.api.results import Results
    from costream.api.runs import RecordStream, detect, listen, read, run
    from costream.api.streams import LoadedModel, ModelStream, load_model
    from costream.sources.uris import open_source

__all__ = [
    "FeedRecords",
    "LoadedModel",
    "ModelStream",
    "RecordStream",
    "Results",
    "__version__",
    "detect",
    "listen",
    "load_model",
    "open_source",
    "read",
    "run",
    "watch",
]
_HOME = {
    "FeedRecords": "costream.api.feeds",
    "LoadedModel": "costream.api.streams",
    "ModelStream": "costream.api.streams",
    "RecordStream": "costream.api.runs",
    "Results": "costream.api.results",
    "detect": "costream.api.runs",
    "listen": "costream.api.runs",
    "load_model": "costream.api.streams",
    "open_source": "costream.sources.uris",
    "read": "costream.api.runs",
    "run": "costream.api.runs",
    "watch": "costream.api.feeds",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'costream' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
