"""Safe reading of pickled feature arrays: no code from the pickle is executed.

A pickle is a program. Here it may only name the few functions with which numpy pickles arrays,
and gets stand-ins for them that check and store plain data: the pickle itself never creates an
object of numpy or of any other class.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from costream.errors import SourceError, display_name
from costream.sources.media.container import check_file

_NUMBER_TYPE = re.compile(r"[<>=|]?[biuf][0-9]{1,2}|\?")


def load_pickle(path: str) -> Any:
    """Return the content of a pickle: plain Python data and numeric numpy arrays.

    The last file is cached, since a pickle of many videos is read once for each. Raises
    SourceError if it is damaged or contains, or names, anything else.
    """
    check_file(path)
    status = os.stat(path)
    return _load(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _load(path: str, _mtime_ns: int, _size: int) -> Any:
    try:
        with open(path, "rb") as file:
            # latin1: the encoding of arrays in Python 2 pickles.
            return _plain(_Unpickler(file, encoding="latin1").load(), {})
    except OSError as error:
        raise SourceError(f"cannot be read ({error})", where=display_name(path)) from error
    except _RefusedError as error:
        raise SourceError(
            str(error),
            where=display_name(path),
            hint="only arrays of numbers are read from pickles",
        ) from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise SourceError(
            f"this pickle is damaged ({type(error).__name__}: {error})", where=display_name(path)
        ) from error


class _RefusedError(Exception):
    """The pickle contains something other than plain data."""


class _StandIn:
    """Replacement for a name in a pickle: it can be called and nothing else."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)

    def __setstate__(self, state: object) -> NoReturn:
        raise _RefusedError("this pickle changes a function")


class _DType:
    """Data type of an array: a numeric type of at most 16 bytes."""

    __slots__ = ("name",)

    def __init__(self, name: object, *_flags: object) -> None:
        if not isinstance(name, str) or not _NUMBER_TYPE.fullmatch(name):
            raise _RefusedError(f"this pickle holds an array of type {name!r}")
        self.name = name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "=", "|"):
            raise _RefusedError("this pickle holds an array with an unknown byte order")
        self.name = order + self.name.lstrip("<>=|")


class _Array:
    """An array as described by its pickle."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: npt.NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, data = state[-4:]
        self.values = _values(data, dtype, shape, "F" if fortran else "C")


def _values(data: object, dtype: object, shape: object, order: object) -> npt.NDArray[Any]:
    if isinstance(data, str):
        data = data.encode("latin1")
    if not (isinstance(data, (bytes, bytearray)) and isinstance(dtype, _DType)):
        raise _RefusedError("this pickle holds an array of something other than numbers")
    if not (isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)):
        raise _RefusedError("this pickle holds an array without a shape")
    flat: npt.NDArray[Any] = np.frombuffer(data, np.dtype(dtype.name))
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _from_buffer(data: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.values = _values(data, dtype, shape, order)
    return array


def _scalar(dtype: object, data: object) -> _Array:
    return _from_buffer(data, dtype, (), "C")


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise _RefusedError("this pickle encodes something other than bytes")
    return text.encode("latin1")


def _ordered_dict(*items: Any) -> dict[Any, Any]:
    return dict(*items)


_NDARRAY = _StandIn(lambda *_: _refuse("numpy.ndarray"))
_NAMES = {
    ("multiarray", "_reconstruct"): _StandIn(lambda *_: _Array()),
    ("multiarray", "scalar"): _StandIn(_scalar),
    ("numeric", "_frombuffer"): _StandIn(_from_buffer),
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): _StandIn(_DType),
    ("_codecs", "encode"): _StandIn(_encode),
    ("collections", "OrderedDict"): _StandIn(_ordered_dict),
}


def _refuse(name: str) -> NoReturn:
    raise _RefusedError(f"this pickle calls {name}, which is refused")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> _StandIn:
        # numpy 2 moved numpy.core to numpy._core; both kinds of files exist.
        short = re.sub(r"^numpy\._?core\.(?=multiarray$|numeric$)", "", module)
        if short != module or module in ("numpy", "_codecs", "collections"):
            stand_in = _NAMES.get((short, name))
            if stand_in is not None:
                return stand_in
        _refuse(f"{module}.{name}")


def _plain(value: Any, seen: dict[int, Any]) -> Any:
    """Replace array descriptions by arrays, in dicts and lists of any depth."""
    if isinstance(value, _Array):
        return value.values
    if id(value) in seen:  # a dict may occur many times, even in itself
        return seen[id(value)]
    if isinstance(value, dict):
        seen[id(value)] = found = {}
        found.update({_name(key): _plain(item, seen) for key, item in value.items()})
        return found
    if isinstance(value, list):
        items: list[Any] = []
        seen[id(value)] = items
        items.extend(_plain(item, seen) for item in value)
        return items
    return value


def _name(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)
