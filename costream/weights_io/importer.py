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
from dataclasses import dataclass
from typing import Any, TypeAlias

from costream.core.registry import Registry

IMPORTERS: Registry[Any] = Registry("costream.models", "importer")
importer = IMPORTERS.register
FRONTEND_IMPORTERS: Registry[Any] = Registry("costream.models", "frontend_importer")
frontend_importer = FRONTEND_IMPORTERS.register
Detect: TypeAlias = Callable[[Mapping[str, object]], bool]


@dataclass(frozen=True)
class HasTensors:
    """A ``detect`` for checkpoints with all tensors of these names, and none of ``without``."""

    names: tuple[str, ...]
    without: tuple[str, ...] = ()

    def __call__(self, tensors: Mapping[str, object]) -> bool:
        """Return whether all names are among the tensors, and none of ``without``."""
        return all(name in tensors for name in self.names) and tensors.keys().isdisjoint(
            self.without
        )


def has_tensors(*names: str, without: tuple[str, ...] = ()) -> Detect:
    """Return a ``detect`` for checkpoints with all of these tensors, and none of ``without``."""
    return HasTensors(names, without)


def has_prefix(prefix: str) -> Detect:
    """Return a ``detect`` for checkpoints with a tensor whose name begins with ``prefix``."""
    return lambda tensors: any(name.startswith(prefix) for name in tensors)


def nearest(tensors: Mapping[str, object]) -> tuple[str, str]:
    """Return what is nearest to a checkpoint of no known format: a reason and what to do.

    Formats are compared without a common start of some names, then by the last parts of the names
    that they require. Two empty texts: none resembles it.
    """
    firsts = dict.fromkeys(name.partition(".")[0] for name in tensors if "." in name)
    for first in firsts:
        start = f"{first}."
        inner = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        for name in IMPORTERS:
            if IMPORTERS.get(name).info["detect"](inner):
                what = f"without the start {start!r}, {len(inner)} of them are of the format {name}"
                return what, f"--config weights={first}"
    best: tuple[float, str, list[str]] = (0.0, "", [])
    ends = {tuple(name.rsplit(".", 3)[-3:]) for name in tensors}
    for name in IMPORTERS:
        detect = IMPORTERS.get(name).info["detect"]
        if isinstance(detect, HasTensors):
            absent = [n for n in detect.names if n not in tensors]
            alike = sum(tuple(n.rsplit(".", 3)[-3:]) in ends for n in detect.names)
            best = max(best, (alike / len(detect.names), name, absent), key=lambda b: b[0])
    _, name, absent = best
    return (f"the nearest is {name}, which has {', '.join(absent[:4])}", "") if name else ("", "")
