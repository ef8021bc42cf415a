"""Restricted unpickling of foreign checkpoints: an allow-list of global names.

A pickle is a program: loading one without restrictions runs arbitrary code. Checkpoints need
tensors, NumPy arrays, plain containers and the argparse.Namespace of a training script; any other
name aborts loading before anything is called.
"""

from __future__ import annotations

import argparse
import collections
import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np

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
