"""Registries of the importers of foreign checkpoints. Does not import torch.

An importer of networks is a function ``(ForeignCheckpoint, ImportSettings) -> ImportedNetwork``
below ``@importer(name, summary=..., detect=..., keys=...)``:

    detect: returns whether a mapping of names to tensors is of the format.
    keys: the keys of ``--config`` that it reads, see ``weights_io.import_settings.KEYS``.
    order: its place in the order of detection.
    merge: optional; a function from all network checkpoints of a command to those that remain,
        for formats whose networks come in several files.
    of_file_name: optional; a function from a path to settings that the file's name implies.
    combine: optional; a function from several imported networks, and the setting ``fusion``, to
        one network.

An importer of frontends is a function ``(checkpoints, ImportSettings, rate_hz) ->
ImportedFrontend`` below ``@frontend_importer(name, title=..., detect=..., keys=...)``. ``alone``
are the fields of the card for a frontend that is imported without a network; without them it
needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from costream.core.registry import Registry

IMPORTERS: Registry[Any] = Registry("costream.models", "importer")
importer = IMPORTERS.register
FRONTEND_IMPORTERS: Registry[Any] = Registry("costream.models", "frontend_importer")
frontend_importer = FRONTEND_IMPORTERS.register
Detect: TypeAlias = Callable[[Mapping[str, object]], bool]


def has_tensors(*names: str) -> Detect:
    """Return a ``detect`` for checkpoints that contain all of these tensors."""
    return lambda tensors: all(name in tensors for name in names)


def has_prefix(prefix: str) -> Detect:
    """Return a ``detect`` for checkpoints with a tensor whose name begins with ``prefix``."""
    return lambda tensors: any(name.startswith(prefix) for name in tensors)
