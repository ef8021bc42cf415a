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

import json
import logging
import mmap
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from costream.core import pickles
from costream.core.errors import ModelError
from costream.core.formatting import listed
from costream.weights_io.file import FORMAT, read_header
from costream.weights_io.tflite_file import read_tflite
from costream.weights_io.torch_file import MAGIC, Namespace, checkpoint_name, read_old, read_zip

log = logging.getLogger("costream")
_WRAPPERS = ("model", "state_dict", "model_state_dict", "model_state", "blobs", "module")
# Exponential moving averages of the weights (timm, MMEngine, DETR, LAVIS, ...).
_AVERAGED = (
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema_model",
    "model_ema_state_dict",
    "ema",
    "swa_model",
    "swa_state_dict",
)
# Entries with the plain weights of trainers that store the averaged ones as ``state_dict``, and an
# entry by which these are known: MMEngine's EMAHook, Lightning's WeightAveraging.
_SWAPPED = {"ema_state_dict": "message_hub", "current_model_state": "averaging_state"}
PLAIN, EMA = "plain", "ema"
_ARGUMENTS = ("args", "config", "hyper_parameters")
_PREFIXES = ("module.", "model.", "net.")  # DataParallel, Lightning
_COMPILED = "_orig_mod."  # of torch.compile, also inside names
# Numbers of updates next to averaged weights: of PyTorch's AveragedModel, of MMEngine.
_COUNTS = ("n_averaged", "steps")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
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


def read_foreign(path: Path, weights: str | None = None) -> ForeignCheckpoint:
    """Read a checkpoint that another program wrote.

    ``weights``: which are taken if it has several: "plain", "ema" (their moving average), or the
    first part of the tensors' names ("student"); None: ``state_dict``, or plain ones if there are
    any, and a warning names the others.

    Raises ModelError when it is missing, damaged, of an unknown format or without these weights,
    and when its pickle references anything but arrays and plain containers.
    """
    content = _load(path)
    args: dict[str, Any] = {}
    averaged = False
    while isinstance(content, Mapping):
        args = {**_arguments(content), **args}
        key, is_averaged = _wrapper(content, weights, path)
        if not key:
            break
        averaged = averaged or is_averaged
        content = content[key]
    if not isinstance(content, Mapping):
        raise ModelError(f"holds a {type(content).__name__}, not weights", where=path, hint=_HINT)
    tensors = _tensors(content, path)
    if weights == EMA and not averaged:
        weights = next((key for key in _AVERAGED if _below(tensors, key)), None)
        if weights is None:
            hint = "leave out --config weights"
            raise ModelError("contains no averaged weights (EMA)", where=path, hint=hint)
    if weights not in (None, PLAIN, EMA):
        tensors = _selected(tensors, str(weights), path)
    return ForeignCheckpoint(path, _without_prefixes(tensors), args)


def _wrapper(content: Mapping[str, Any], weights: str | None, path: Path) -> tuple[str, bool]:
    """Return the key of the container of the weights in ``content``, and whether it is averaged.

    The key is "" if ``content`` is the container.
    """
    plain, averaged = (
        next((key for key in keys if isinstance(content.get(key), Mapping)), "")
        for keys in (_WRAPPERS, _AVERAGED)
    )
    usual = plain or averaged
    for other, sign in _SWAPPED.items():
        if usual == "state_dict" and sign in content and isinstance(content.get(other), Mapping):
            plain, averaged = other, usual
    if weights is None and plain and averaged:
        kinds = {plain: PLAIN, averaged: EMA}
        other = averaged if usual == plain else plain
        log.warning(
            "%s: of the weights %r (%s) and %r (%s) the first are taken;"
            " --config weights=%s takes the others",
            *(path, usual, kinds[usual], other, kinds[other], kinds[other]),
        )
    key = {EMA: averaged, PLAIN: plain}.get(str(weights)) or usual
    return key, bool(key) and key == averaged


def _selected(tensors: Mapping[str, Tensor], first: str, path: Path) -> dict[str, Tensor]:
    """Return the tensors below the name ``first``, without it; ModelError if there are none."""
    found = _below(tensors, first)
    if not found:
        firsts = list(dict.fromkeys(name.partition(".")[0] for name in tensors))
        hint = f"weights are plain, ema or the start of their names: {', '.join(firsts[:_SHOWN])}"
        raise ModelError(f"no tensor's name begins with {first!r}", where=path, hint=hint)
    return found


def _below(tensors: Mapping[str, Tensor], first: str) -> dict[str, Tensor]:
    prefix = f"{first.rstrip('.')}."
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


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
    if start[:1] == b"{":
        return _load_shards(path, _listed_shards(path))
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
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return load_file(path)
    name, count = shard[1], int(shard[3])
    return _load_shards(
        path, [f"{name}-{k:05}-of-{shard[3]}.safetensors" for k in range(1, count + 1)]
    )


def without_parts(paths: Iterable[Path]) -> list[Path]:
    """Return the paths with only the first of the parts of each safetensors checkpoint."""
    first: dict[object, Path] = {}
    for path in paths:
        part = _SHARD.fullmatch(path.name)
        first.setdefault((path.parent, part[1], part[3]) if part else (path, len(first)), path)
    return list(first.values())


def _load_shards(path: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors of safetensors files next to ``path``; ModelError if one is missing."""
    from safetensors.torch import load_file

    paths = [path.with_name(name) for name in names]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        what = f"one of {len(paths)} parts, of which {listed(missing)} are missing"
        raise ModelError(what, where=path, hint="put all parts into one folder")
    return {name: value for part in paths for name, value in load_file(part).items()}


def _listed_shards(path: Path) -> list[str]:
    """Return the names of the files that an index of safetensors lists."""
    files = json.loads(path.read_text("utf-8"))["weight_map"]
    return sorted({Path(name).name for name in files.values()})


def _load_hdf5(path: Path) -> dict[str, Any]:
    """Return the arrays of an HDF5 file by their paths in it."""
    try:
        import h5py
    except ImportError as error:
        hint = "pip install 'costream[h5]', or import the same network from a PyTorch file"
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
    if len(tensors) > 1:
        tensors = {k: v for k, v in tensors.items() if k not in _COUNTS or v.ndim}
    return {name.replace(_COMPILED, ""): value for name, value in tensors.items()}


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
