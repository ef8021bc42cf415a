"""On-disk cache of frontend features: a second training need not read the recordings again."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from costream.core.errors import OutputError
from costream.core.version import __version__
from costream.labels.examples import Example
from costream.weights_io.card import Card
from costream.weights_io.file import tensors_digest, write_whole
from costream.weights_io.store import cache_folder

log = logging.getLogger("costream")

LIMIT_BYTES = 4_000_000_000
_SUFFIX = ".features"


def features_folder() -> Path:
    """Return the folder of cached features in the user's cache."""
    return cache_folder().with_name("features")


def example_key(example: Example) -> list[Any] | None:
    """Return the cache key of an example: path, size and modification time of its file, and range.

    None for anything but a regular file, such as a URL, whose changes cannot be detected.
    """
    try:
        status = os.stat(example.source)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    path = os.path.realpath(example.source)
    return [path, status.st_size, status.st_mtime_ns, example.start_s, example.end_s]


def join_keys(*keys: list[Any] | None) -> list[Any] | None:
    """Return the combined key of several examples; None if one of them has none."""
    return None if None in keys else list(keys)


def example_seed(example: Example, seed: int) -> int:
    """Return the random seed of an example, independent of where its folder is."""
    name = [seed, os.path.basename(example.source), example.start_s, example.end_s]
    return int.from_bytes(hashlib.sha256(json.dumps(name).encode()).digest()[:8], "big")


class FeatureCache:
    """Disk cache of one frontend's features of many files.

    Keys are JSON values. The frontend with its weights, the rate of the card, the versions of
    costream and PyTorch, the number of threads and the device are part of every key, since all of
    them change the numbers. Corrupt entries are ignored. The folder is kept below ``LIMIT_BYTES``:
    the least recently used entries are deleted first. ``folder`` None: no cache.
    """

    def __init__(
        self, folder: Path | None, card: Card, frontend: nn.Module, device: str = "cpu"
    ) -> None:
        self._folder = folder
        self._base = [
            *(__version__, torch.__version__, torch.get_num_threads()),
            *(card.frontend, card.frontend_arguments, card.rate_hz),
            tensors_digest(frontend.state_dict()),
            *([] if device == "cpu" else [device]),
        ]

    def make(self, key: list[Any] | None, compute: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Return the tensors of a key, computing them if missing; key None is never cached."""
        if self._folder is None or key is None:
            return compute()
        text = json.dumps([self._base, key], sort_keys=True)
        path = self._folder / (hashlib.sha256(text.encode()).hexdigest() + _SUFFIX)
        tensors = _read(path)
        if tensors is None:
            tensors = compute()
            try:
                write_whole(path, _packed(tensors))
            except OutputError as error:
                log.warning("features are not cached: %s", error)
                self._folder = None
        return tensors

    def prune(self) -> None:
        """Delete the least recently used entries until ``LIMIT_BYTES`` are left at most."""
        if self._folder is None:
            return
        with suppress(OSError):  # another training may prune too
            # Including incomplete files of killed runs.
            entries = [(p.stat(), p) for p in self._folder.glob(f"*{_SUFFIX}*")]
            total = sum(status.st_size for status, _ in entries)
            for status, path in sorted(entries, key=lambda entry: entry[0].st_mtime_ns):
                if total <= LIMIT_BYTES:
                    return
                path.unlink(missing_ok=True)
                total -= status.st_size


def _packed(tensors: list[Tensor]) -> list[bytes]:
    from safetensors.torch import save

    content = save({str(k): tensor.contiguous() for k, tensor in enumerate(tensors)})
    return [hashlib.sha256(content).digest(), content]


def _read(path: Path) -> list[Tensor] | None:
    from safetensors.torch import load

    try:
        packed = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    digest, content = packed[:32], packed[32:]
    if hashlib.sha256(content).digest() != digest:
        return None
    tensors = load(content)
    return [tensors[str(k)] for k in range(len(tensors))]
