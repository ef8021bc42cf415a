"""Registry of the importers of foreign checkpoints. Does not import torch.

An importer is one file: ``@importer(name, summary=..., detect=..., keys=...)`` above the function
that converts, ``(ForeignCheckpoint, ImportSettings) -> ImportedNetwork``. ``detect`` returns
whether a mapping of names to tensors is of the format, ``keys`` are the keys of ``--config`` that
it reads (see ``weights_io.import_settings.KEYS``), ``order`` is its place in the order of
detection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from costream.core.registry import Registry

IMPORTERS: Registry[Any] = Registry("costream.models", "importer")
importer = IMPORTERS.register
Detect: TypeAlias = Callable[[Mapping[str, object]], bool]


def has_tensors(*names: str) -> Detect:
    """Return a ``detect`` for checkpoints that contain all of these tensors."""
    return lambda tensors: all(name in tensors for name in names)


def has_prefix(prefix: str) -> Detect:
    """Return a ``detect`` for checkpoints with a tensor whose name begins with ``prefix``."""
    return lambda tensors: any(name.startswith(prefix) for name in tensors)
