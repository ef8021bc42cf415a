"""Files of a stream's state: the network's memory as safetensors, the rest as metadata."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costream.core.locks import open_own
from costream.sinks.atomic import write_file

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "costream-state/1"


class UnfitStateError(Exception):
    """A saved state cannot be used; the message gives the reason."""


def write_state(
    path: Path, metadata: Mapping[str, str], tensors: Mapping[str, Tensor], *, durable: bool = True
) -> None:
    """Write a state to ``path``, which is replaced atomically. Raises OutputError or OSError.

    If not ``durable``, the file is overwritten without waiting for the disk: the process being
    killed meanwhile leaves a damaged file, a power failure any content.
    """
    from safetensors.torch import save

    # Separate copies: tensors that share memory cannot be saved.
    copies = {key: t.detach().cpu().contiguous().clone() for key, t in tensors.items()}
    data = save(copies, {"format": FORMAT, **metadata, "sha256": _digest(copies)})
    if durable:
        write_file(path, data)
        return
    file = open_own(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0))
    try:
        with open(file, "wb") as open_file:
            open_file.write(data)
            open_file.truncate()
    except OSError:
        path.unlink(missing_ok=True)  # a file that is overwritten in part is not valid
        raise


def read_state(path: Path, expected: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return metadata and tensors of a state. ``expected``: entries that have to match.

    Raises UnfitStateError for a damaged file or other entries, OSError if it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
        raise UnfitStateError("it is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, Any] = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UnfitStateError("it is damaged") from error
    for key, value in {"format": FORMAT, **expected}.items():
        if metadata.get(key) != value:
            raise UnfitStateError(f"{key} {metadata.get(key)!r:.80}, not {value!r:.80}")
    if metadata.get("sha256") != _digest(tensors):
        raise UnfitStateError("it is damaged")
    return metadata, tensors


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names and bytes of all tensors."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
