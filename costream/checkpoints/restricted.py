"""What a foreign pickle may name, and nothing else.

A pickle is a program: loading one without limits runs whatever its maker wrote. Checkpoints need
tensors, NumPy arrays, plain containers and the argparse.Namespace of a training script; every
other name ends the loading before anything is called.
"""

from __future__ import annotations

import argparse
import collections
import pickle
from collections.abc import Callable
from typing import IO, Any

import numpy as np

# Files made before NumPy 2 say numpy.core, later ones numpy._core.
_RECONSTRUCT: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]
_SCALAR: Callable[..., Any] = np.float64(0).__reduce__()[0]
_FROM_BUFFER: Callable[..., Any] = np.empty(0).__reduce_ex__(5)[0]  # type: ignore[assignment]


def _latin_1(text: str, encoding: str) -> bytes:
    """Stand in for ``_codecs.encode``, which protocol 2 uses for bytes."""
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


# Whole training states name the classes of the trainer, its schedulers and callbacks.
TRAINERS = ("pytorch_lightning.", "lightning.", "ride.", "torch.optim.")


class StandIn:
    """Takes the place of a trainer's class, and does nothing: the weights beside it are wanted."""

    def __init__(self, *args: object) -> None:
        """Take anything."""

    def __setstate__(self, state: object) -> None:
        """Forget it."""


def stand_in(name: str) -> type[Any]:
    """Give what stands in for a class of a trainer: a plain dictionary for one of its own."""
    return collections.OrderedDict if name.endswith("Dict") else StandIn


def stand_in_attribute(owner: object, name: str) -> type[StandIn]:
    """Stand in for ``getattr``, by which pickles name the methods of a scheduler's class."""
    if owner is not StandIn:
        raise pickle.UnpicklingError("refused global builtins.getattr")
    return StandIn


class RestrictedUnpickler(pickle.Unpickler):
    """Loads arrays, numbers, text and containers; refuses every other name."""

    def find_class(self, module: str, name: str) -> Any:
        """Give an allowed object; pickle.UnpicklingError for any other."""
        try:
            return ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(f"refused global {module}.{name}") from None


def load_pickle(file: IO[bytes]) -> Any:
    """Load a plain pickle of arrays; pickle.UnpicklingError when it holds anything else."""
    return RestrictedUnpickler(file, encoding="latin1").load()
