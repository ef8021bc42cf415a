"""Readers of foreign checkpoint files: named tensors, without executing anything in the file.

Supported are torch files (zip and old), safetensors, .npz, HDF5 of Keras, TFLite, and plain pickles
of NumPy arrays.
Containers that training scripts put around the weights are removed; the arguments in an ``args``
entry are kept.

A pickle is a program: loading one without restrictions runs arbitrary code. Checkpoints need
tensors, NumPy arrays, plain containers and the argparse.Namespace of a training script; any other
name aborts loading before anything is called (``costream.core.pickles``).
"""

from __future__ import annotations

import mmap
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from costream.core import pickles
from costream.core.errors import ModelError
from costream.weights_io.file import FORMAT, read_header
from costream.weights_io.tflite_file import read_tflite
from costream.weights_io.torch_file import MAGIC, Namespace, checkpoint_name, read_old, read_zip

_WRAPPERS = ("model", "state_dict", "model_state_dict", "model_state", "blobs")
_ARGUMENTS = ("args", "config", "hyper_parameters")
_PREFIXES = ("module.", "model.", "_orig_mod.")  # DataParallel, Lightning, torch.compile
_EXPANSION = 64  # weights that take more times the size of their file are not read
_HDF5 = b"\x89HDF\r\n\x1a\n"
_SHOWN = 8  # names of entries in a message
_HINT = "save the weights alone: torch.save(model.state_dict(), FILE)"


@dataclass(frozen=True)
class ForeignCheckpoint:
    """Contents of a foreign checkpoint."""

    path: Path
    tensors: dict[str, Tensor]  # floating point ones as float32
    args: dict[str, Any]  # of its training script, an ``args`` namespace or ``config``; often empty


def read_foreign(path: Path) -> ForeignCheckpoint:
    """Read a checkpoint that another program wrote.

    Raises ModelError when it is missing, damaged, of an unknown format or without weights, and
    when its pickle references anything but arrays and plain containers.
    """
    content = _load(path)
    args: dict[str, Any] = {}
    while isinstance(content, Mapping):
        args = {**_arguments(content), **args}
        inner = next((content[k] for k in _WRAPPERS if isinstance(content.get(k), Mapping)), None)
        if inner is None:
            break
        content = inner
    if not isinstance(content, Mapping):
        raise ModelError(f"holds a {type(content).__name__}, not weights", where=path, hint=_HINT)
    return ForeignCheckpoint(path, _tensors(content, path), args)


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=path) from error
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror or error})", where=path) from error
    try:
        loaded = _load_as(path, start)
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle or archive can raise any exception
        raise _unreadable(path, error) from error
    if loaded is None:
        raise _foreign(path, start)
    return loaded


def _load_as(path: Path, start: bytes) -> Any:
    """Return the content of a file that begins with ``start``; None for an unknown format."""
    if start[:4] == b"PK\x03\x04":
        return _load_zip(path)
    if start[8:9] == b"{":
        return _load_safetensors(path)
    if start[:8] == _HDF5:
        return _load_hdf5(path)
    if start[4:8] == b"TFL3":
        return read_tflite(path.read_bytes())
    if start[:1] == b"\x80":
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            return (
                read_old(m) if start == MAGIC else pickles.plain(pickles.load(m, checkpoint_name))
            )
    return None


def _load_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        _check_size(sum(member.file_size for member in archive.infolist()), path)
        if any(name.endswith("/constants.pkl") for name in names):
            raise ModelError("a TorchScript program, not weights", where=path, hint=_HINT)
        if not names or not all(name.endswith(".npy") for name in names):
            return read_zip(archive)
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _load_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    if read_header(path).metadata.get("format") == FORMAT:
        raise ModelError(
            "is already a costream weight file",
            where=path,
            hint="use it as it is: -m FILE or --weights FILE",
        )
    return load_file(path)


def _load_hdf5(path: Path) -> dict[str, Any]:
    """Return the arrays of an HDF5 file by their paths in it."""
    try:
        import h5py
    except ImportError as error:
        hint = "pip install h5py, or import the same network from a PyTorch file"
        raise ModelError(
            "an HDF5 file, which needs the package h5py", where=path, hint=hint
        ) from error
    arrays: dict[str, Any] = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: arrays.update({name: item[()]}) if hasattr(item, "dtype") else None
        )
    return arrays


def _foreign(path: Path, start: bytes) -> ModelError:
    """Return the error for a file that is not a checkpoint, and what it is instead."""
    with path.open("rb") as file:
        head = file.read(512).lstrip().lower()
    hint = None
    if head.startswith((b"<!doctype html", b"<html")):
        what = "an HTML page, not a checkpoint"
        hint = "the page of the download was saved in its place: download the file itself"
    elif start[:2] == b"\x1f\x8b":
        what = "a gzip archive, such as TensorFlow's bundles, which are not read"
        hint = "import a PyTorch file of the same network"
    else:
        what = "not a checkpoint: neither a torch file, safetensors, .npz, HDF5 nor a pickle"
    return ModelError(what, where=path, hint=hint)


def _unreadable(path: Path, error: Exception) -> ModelError:
    text = str(error)
    refused = re.search(r"calls ([\w.]+), which is refused", text)
    if refused:
        return ModelError(
            f"refused: it references {refused[1]}; only arrays, plain containers and"
            " argparse.Namespace are loaded; nothing was executed",
            where=path,
            hint=_HINT,
        )
    reason = text.strip().partition("\n")[0][:120] or type(error).__name__
    return ModelError(f"damaged or not a checkpoint ({reason})", where=path)


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for key in _ARGUMENTS:
        value = content.get(key)
        if isinstance(value, Namespace):
            args.update(value.fields)
        elif isinstance(value, Mapping):
            args.update(value)
    return args


def _tensors(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    strange = []
    total = 0
    for name, value in content.items():
        total += getattr(value, "nbytes", 0)
        _check_size(total, path)
        if _is_array(value):
            value = torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            value = value.detach()
            tensors[str(name)] = value.float() if value.is_floating_point() else value
        elif name not in _ARGUMENTS:
            strange.append(f"{str(name)[:100]} ({type(value).__name__})")
    if len(strange) > _SHOWN:
        strange[_SHOWN:] = [f"{len(strange) - _SHOWN} more"]
    if not tensors:
        raise ModelError(
            f"contains no tensors; its entries: {', '.join(strange) or 'none'}", where=path
        )
    if strange:
        raise ModelError(f"entries that are not plain tensors: {', '.join(strange)}", where=path)
    return _without_prefixes(tensors)


def _without_prefixes(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            return _without_prefixes({k.removeprefix(prefix): v for k, v in tensors.items()})
    return tensors


def _is_array(value: object) -> bool:
    if not isinstance(value, np.ndarray):
        return False
    return value.dtype.kind in "fiub" and value.dtype.itemsize <= 8


def _check_size(size: int, path: Path) -> None:
    if size > _EXPANSION * path.stat().st_size + (1 << 20):
        raise ModelError(f"damaged: {size / 1e6:,.0f} MB in a small file", where=path)
