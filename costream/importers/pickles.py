"""Readers of foreign checkpoint files: named tensors, without executing anything in the file.

Supported are torch files (zip and old), safetensors, .npz, and plain pickles of NumPy arrays.
Containers that training scripts put around the weights are removed; the arguments in an ``args``
entry are kept.

A pickle is a program: loading one without restrictions runs arbitrary code. Checkpoints need
tensors, NumPy arrays, plain containers and the argparse.Namespace of a training script; any other
name aborts loading before anything is called.
"""

from __future__ import annotations

import argparse
import collections
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from costream.checkpoints.file import FORMAT, read_header
from costream.errors import ModelError

_WRAPPERS = ("model", "state_dict", "model_state_dict", "model_state", "blobs")
_ARGUMENTS = ("args", "config", "hyper_parameters")
_PREFIXES = ("module.", "model.", "_orig_mod.")  # DataParallel, Lightning, torch.compile
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number of torch < 1.6
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
            start = file.read(len(_OLD_TORCH))
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=path) from error
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror or error})", where=path) from error
    try:
        if start[:4] == b"PK\x03\x04":
            return _load_zip(path)
        if start == _OLD_TORCH:
            return _load_torch(path)
        if start[8:9] == b"{":
            return _load_safetensors(path)
        if start[:1] == b"\x80":
            with path.open("rb") as file:
                return load_pickle(file)
    except ModelError:
        raise
    except Exception as error:  # a damaged pickle or archive can raise any exception
        raise _unreadable(path, error) from error
    raise ModelError(
        "not a checkpoint: neither a torch file, safetensors, .npz nor a pickle", where=path
    )


def _load_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if names and all(name.endswith(".npy") for name in names):
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    if any(name.endswith("/constants.pkl") for name in names):
        raise ModelError("a TorchScript program, not weights", where=path, hint=_HINT)
    return _load_torch(path)


def _load_torch(path: Path) -> Any:
    allowed = [(value, name) for name, value in ALLOWED.items() if not name.startswith("_codecs")]
    allowed += _stand_ins(path)
    with torch.serialization.safe_globals([*allowed, *DTYPES]), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about the pickle protocol of old files
        return torch.load(path, map_location="cpu", weights_only=True)


def _stand_ins(path: Path) -> list[tuple[Any, str]]:
    """Return substitutes for a trainer's classes named in a zip file of torch."""
    if not zipfile.is_zipfile(path):
        return []
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    pairs: list[tuple[Any, str]] = [(stand_in(n), n) for n in names if n.startswith(TRAINERS)]
    return [*pairs, (stand_in_attribute, "builtins.getattr")] if pairs else []


def _load_safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    if read_header(path).metadata.get("format") == FORMAT:
        raise ModelError(
            "is already a costream weight file",
            where=path,
            hint="use it as it is: -m FILE or --weights FILE",
        )
    return load_file(path)


def _unreadable(path: Path, error: Exception) -> ModelError:
    text = str(error)
    refused = re.search(r"(?:refused global|GLOBAL) ([\w.]+)", text)
    if refused:
        return ModelError(
            f"refused: it references {refused[1]}; only arrays, plain containers and"
            " argparse.Namespace are loaded; nothing was executed",
            where=path,
            hint=_HINT,
        )
    # torch's message begins with a page of advice on how to load the file unsafely.
    match = re.search(r"WeightsUnpickler error: (.+)|\n\s*\n(.+)", text)
    reason = (match[1] or match[2] if match else text).strip().partition("\n")[0][:120]
    reason = reason or type(error).__name__
    return ModelError(f"damaged or not a checkpoint ({reason})", where=path)


def _arguments(content: Mapping[str, Any]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for key in _ARGUMENTS:
        value = content.get(key)
        if isinstance(value, argparse.Namespace):
            args.update(vars(value))
        elif isinstance(value, Mapping):
            args.update(value)
    return args


def _tensors(content: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    strange = []
    for name, value in content.items():
        if _is_array(value):
            value = torch.from_numpy(value.astype(value.dtype.newbyteorder("=")))
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized:
            value = value.detach()
            tensors[str(name)] = value.float() if value.is_floating_point() else value
        elif name not in _ARGUMENTS:
            strange.append(f"{name} ({type(value).__name__})")
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


# Files written before NumPy 2 use numpy.core, later ones numpy._core.
_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]
_SCALAR: Callable[..., Any] = np.float64(0).__reduce__()[0]
_FROM_BUFFER: Callable[..., Any] = np.empty(0).__reduce_ex__(5)[0]  # type: ignore[assignment]


def _latin_1(text: str, encoding: str) -> bytes:
    """Replace ``_codecs.encode``, which protocol 2 uses for bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin-1")


ALLOWED: dict[str, Any] = {
    "argparse.Namespace": argparse.Namespace,
    "collections.OrderedDict": collections.OrderedDict,
    "_codecs.encode": _latin_1,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    **{
        f"numpy.{core}.{name}": value
        for core in ("core", "_core")
        for name, value in {
            "multiarray._reconstruct": _RECONSTRUCT,
            "multiarray.scalar": _SCALAR,
            "numeric._frombuffer": _FROM_BUFFER,
        }.items()
    },
}
DTYPES = tuple(
    type(np.dtype(code))
    for code in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")
)
# Complete training states reference the classes of the trainer, its schedulers and callbacks.
TRAINERS = ("pytorch_lightning.", "lightning.", "ride.", "torch.optim.")


class StandIn:
    """Inert substitute for a trainer's class; only the weights in the same file are needed."""

    def __init__(self, *args: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        """Discard the state."""


def stand_in(name: str) -> type[Any]:
    """Return the substitute for a trainer's class; an OrderedDict for a dictionary class."""
    return collections.OrderedDict if name.endswith("Dict") else StandIn


def stand_in_attribute(owner: object, name: str) -> type[StandIn]:
    """Replace ``getattr``, with which pickles reference methods of a scheduler's class."""
    if owner is not StandIn:
        raise pickle.UnpicklingError("refused global builtins.getattr")
    return StandIn


class RestrictedUnpickler(pickle.Unpickler):
    """Unpickler for arrays, numbers, text and containers that refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed object; raise pickle.UnpicklingError for any other name."""
        try:
            return ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"refused global {module}.{name}") from None


def load_pickle(file: IO[bytes]) -> Any:
    """Load a plain pickle of arrays; raise pickle.UnpicklingError for any other content."""
    return RestrictedUnpickler(file, encoding="latin1").load()
