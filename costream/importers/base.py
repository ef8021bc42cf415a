"""Registry of the importers of foreign checkpoints. Does not import torch.

An importer is one file: ``@importer(name, summary=..., detect=..., keys=...)`` above the function
that converts, ``(ForeignCheckpoint, ImportSettings) -> ImportedNetwork``. ``detect`` returns
whether a mapping of names to tensors is of the format, ``keys`` are the keys of ``--config`` that
it reads (see ``importers.config.KEYS``), ``order`` is its place in the order of detection.
"""

from __future__ import annotations

from typing import Any

from costream.registry import Registry

IMPORTERS: Registry[Any] = Registry("costream.importers", "importer")
importer = IMPORTERS.register
