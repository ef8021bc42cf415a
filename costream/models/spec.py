"""Registry of networks: ``@register_model`` above a class is all that adds one.

Listing them imports none; the file of a network is imported when it is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from costream.core.registry import Registry

T = TypeVar("T")
MODELS: Registry[Any] = Registry("costream.models", "register_model")


@dataclass(frozen=True)
class ModelSpec:
    """Properties of a registered name besides its class.

    ``arguments`` and the fields after it are the sizes of the paper, for ``costream models init``
    and its cards. A name without ``arguments`` is that of weights of the network ``architecture``.
    """

    summary: str | None = None  # its line in 'costream models list'; None: not listed
    architecture: str | None = None  # of its cards; None: the name itself
    listed: int = 99  # place in 'costream models list', ascending
    order: int = 99  # place among the architectures
    gated: bool = False  # computes a settable number of tokens
    model: str = "costream.models.streaming:StreamingModel"  # "module:class" that runs it
    any_size: bool = False  # its pictures may have other sizes, NAME@PIXELS: see ``with_size``
    bench: str | None = None  # "module:function" of 'costream bench steps': (name, rounds, threads)
    arguments: Mapping[str, Any] | None = None  # where they are not defaults
    task: str = "online action detection"
    rate_hz: float = 4.0
    whole: bool = False  # an output describes all of its receptive field, not its end
    frontend: str | None = None  # None: it takes features
    frontend_arguments: Mapping[str, Any] = field(default_factory=dict)


_FIELDS = {f.name for f in fields(ModelSpec)}


def register_model(name: str, **spec: Any) -> Callable[[T], T]:
    """Return a class decorator that registers a network under ``name``.

    ``spec``: fields of ``ModelSpec``. Those before ``arguments`` must be literals: they are read
    without importing the file. A class may have several names, for sizes of it. Raises TypeError
    for unknown fields.
    """
    if not _FIELDS.issuperset(spec):
        raise TypeError(f"unknown fields: {', '.join(sorted(spec.keys() - _FIELDS))}")
    return MODELS.register(name, **spec)


def model_spec(name: str) -> ModelSpec:
    """Return the properties of a name, importing its file. Raises KeyError if it is unknown."""
    return ModelSpec(**MODELS.get(name).info)


def architectures() -> list[str]:
    """Return the names that cards may have as their architecture, without importing them."""
    return [name for name, entry in MODELS.entries().items() if "architecture" not in entry.info]


def initial_models() -> list[str]:
    """Return the names that ``costream models init`` takes, importing every network."""
    return [name for name in MODELS if model_spec(name).arguments is not None]


def model_summaries() -> dict[str, str]:
    """Return the lines of ``costream models list`` by name, without importing any network."""
    shown = [(name, e.info) for name, e in MODELS.entries().items() if e.info.get("summary")]
    shown.sort(key=lambda item: item[1].get("listed", 99))
    return {name: info["summary"] for name, info in shown}


def model_benches() -> dict[str, str]:
    """Return the "module:function" that times a network by name, without importing any network."""
    return {name: e.info["bench"] for name, e in MODELS.entries().items() if "bench" in e.info}


def has_any_size(architecture: str) -> bool:
    """Return whether networks of this architecture take pictures of other sizes."""
    entry = MODELS.entries().get(architecture)
    return entry is not None and bool(entry.info.get("any_size"))


def is_gated(architecture: str) -> bool:
    """Return whether networks of this architecture compute a settable number of tokens."""
    entry = MODELS.entries().get(architecture)
    return entry is not None and bool(entry.info.get("gated"))
