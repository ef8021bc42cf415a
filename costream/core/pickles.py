"""Safe reading of pickles: no code from the pickle is executed.

A pickle is a program. Its opcodes are looked through first; then it may only name the few
functions with which arrays are pickled, and gets stand-ins for them that check and store plain
data: the pickle itself never creates an object of numpy, torch or any other package.
"""

from __future__ import annotations

import mmap
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, NoReturn

import numpy as np
import numpy.typing as npt

_MAX_OPCODES = 20_000_000  # a large data set of skeletons has half as many
_MAX_KEY = 256  # values in one key of a dictionary; hashing it visits each of them
_OPCODES = {op.code.encode("latin-1"): op for op in pickletools.opcodes}
_REFUSED = {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX", "NEXT_BUFFER", "READONLY_BUFFER"}
_GETS = {"GET", "BINGET", "LONG_BINGET"}
_PUTS = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"}
_HASHED = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "FROZENSET"}  # hashed with all they contain
_NUMBER_TYPE = re.compile(r"[<>=|]?[biuf][0-9]{1,2}|\?")


class RefusedError(Exception):
    """The pickle contains something other than plain data."""


class StandIn:
    """Replacement for a name in a pickle: it can be called and nothing else."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> Any:
        """Return the replacement's result."""
        return self.call(*args)

    def __setstate__(self, state: object) -> NoReturn:
        """Refuse to be changed."""
        raise RefusedError("this pickle changes a function")


class Described:
    """An array or tensor as described by its pickle."""

    __slots__ = ()

    def value(self) -> Any:
        """Return what is described; raise RefusedError if that is impossible."""
        raise NotImplementedError


def load(
    file: IO[bytes] | mmap.mmap,
    names: Callable[[str], Any] = lambda name: None,
    persistent: Callable[[object], Any] | None = None,
) -> Any:
    """Return what the pickle at the position of ``file`` describes.

    ``names`` returns the replacement of a full name that is not numpy's, or None to refuse it;
    ``persistent`` that of a persistent id. Raises RefusedError, and any other exception for a
    damaged pickle.
    """
    start = file.tell()
    _screen(file)
    file.seek(start)
    return _Unpickler(file, names, persistent).load()


def plain(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Replace descriptions by what they describe, in dicts and lists of any depth."""
    seen = {} if seen is None else seen
    if not isinstance(value, (Described, dict, list)):
        return value
    if id(value) in seen:  # a dict may occur many times, even in itself
        return seen[id(value)]
    if isinstance(value, Described):
        seen[id(value)] = value.value()
    elif isinstance(value, dict):
        seen[id(value)] = found = {}
        found.update({_name(key): plain(item, seen) for key, item in value.items()})
    else:
        items: list[Any] = []
        seen[id(value)] = items
        items.extend(plain(item, seen) for item in value)
    return seen[id(value)]


def _name(key: object) -> str:
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        file: IO[bytes] | mmap.mmap,
        names: Callable[[str], Any],
        persistent: Callable[[object], Any] | None,
    ) -> None:
        super().__init__(file, encoding="latin1")  # of arrays in Python 2 pickles
        self._names = _numpy_names()
        self._find = names
        self._persistent = persistent

    def find_class(self, module: str, name: str, /) -> Any:
        full = f"{module}.{name}"
        found = self._names.get(full) or self._find(full)
        return refuse(full) if found is None else found

    def persistent_load(self, pid: object, /) -> Any:
        if self._persistent is None:
            raise RefusedError("this pickle refers to other files")
        return self._persistent(pid)


def refuse(name: str) -> NoReturn:
    """Raise the error for a name that pickles may not use."""
    raise RefusedError(f"this pickle calls {name}, which is refused")


# The opcodes, without building anything.


def _screen(file: IO[bytes] | mmap.mmap) -> None:
    """Read to the end of a pickle; raise RefusedError if building it could take forever.

    Tracked is how many values hashing each item of the stack visits; a mark is None. Values may
    be shared, so that a tuple of a few bytes can contain itself spelled out 2**40 times.
    """
    stack: list[int | None] = []
    memo: dict[int, int] = {}
    for _ in range(_MAX_OPCODES):
        op = _OPCODES[file.read(1)]
        if op.name in _REFUSED:
            raise RefusedError(f"this pickle uses the operation {op.name}")
        argument = _argument(op, file)
        if op.name == "STOP":
            return
        if op.name in _PUTS:
            index = len(memo) if op.name == "MEMOIZE" else argument
            if not 0 <= index <= len(memo) + _MAX_KEY:  # the memo is an array as long as this
                raise RefusedError("this pickle numbers its values in no order")
            memo[index] = stack[-1] or 0
        elif op.name in _GETS:
            stack.append(memo[argument])
        else:
            _apply(op, stack)
    raise RefusedError(f"this pickle has more than {_MAX_OPCODES:,} operations")


def _argument(op: pickletools.OpcodeInfo, file: IO[bytes] | mmap.mmap) -> Any:
    """Read the argument of an operation; None if it has none."""
    if op.arg is None:
        return None
    if op.name == "STRING":  # not by pickletools, which wants ASCII: arrays of Python 2 are strings
        return file.readline()
    return op.arg.reader(file)  # type: ignore[arg-type]  # read and readline are enough


def _apply(op: pickletools.OpcodeInfo, stack: list[int | None]) -> None:
    """Change the stack as the operation does, except for those that use the memo."""
    if op.name == "MARK":
        stack.append(None)
    elif op.name == "POP":
        stack.pop()
    elif op.name == "DUP":
        stack.append(stack[-1])
    else:
        _build(op, stack)


def _build(op: pickletools.OpcodeInfo, stack: list[int | None]) -> None:
    """Replace the values that an operation takes by the one that it makes."""
    if pickletools.stackslice in op.stack_before:
        items = []
        while (item := stack.pop()) is not None:
            items.append(item)
        items.reverse()
        # Before the mark: the container that is extended.
        for _ in op.stack_before[: op.stack_before.index(pickletools.markobject)]:
            stack.pop()
    else:
        items = [stack.pop() or 0 for _ in op.stack_before][::-1]
    if op.name in ("SETITEMS", "DICT"):
        _check_keys(items[::2])
    elif op.name == "SETITEM":
        _check_keys(items[1:2])
    elif op.name in ("ADDITEMS", "FROZENSET"):
        _check_keys(items)
    size = 1 + min(sum(items), _MAX_KEY) if op.name in _HASHED else 1
    stack.extend(size for _ in op.stack_after)


def _check_keys(sizes: Iterable[int]) -> None:
    if any(size > _MAX_KEY for size in sizes):
        raise RefusedError("this pickle has a key of very many values")


# Stand-ins of plain Python and numpy.


class _DType:
    """Data type of an array: a numeric type of at most 16 bytes."""

    __slots__ = ("name",)

    def __init__(self, name: object, *_flags: object) -> None:
        if not isinstance(name, str) or not _NUMBER_TYPE.fullmatch(name):
            shown = repr(name[:20]) if isinstance(name, str) else type(name).__name__
            raise RefusedError(f"this pickle holds an array of type {shown}")
        self.name = name

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "=", "|"):
            raise RefusedError("this pickle holds an array with an unknown byte order")
        self.name = order + self.name.lstrip("<>=|")


class _Array(Described):
    __slots__ = ("encode", "values")

    def __init__(self, encode: _Encoder, values: npt.NDArray[Any] | None = None) -> None:
        self.encode = encode
        self.values = np.empty(0) if values is None else values

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, dtype, fortran, data = state[-4:]
        raw = self.encode(data) if isinstance(data, str) else data
        self.values = _values(raw, dtype, shape, "F" if fortran else "C")

    def value(self) -> npt.NDArray[Any]:
        return self.values


def _values(
    data: object, dtype: object, shape: object, order: object, axes: object = None
) -> npt.NDArray[Any]:
    """Return an array from the arguments of NumPy's ``_frombuffer``; ``axes``: see there."""
    if not (isinstance(data, (bytes, bytearray)) and isinstance(dtype, _DType)):
        raise RefusedError("this pickle holds an array of something other than numbers")
    if not (isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)):
        raise RefusedError("this pickle holds an array without a shape")
    flat: npt.NDArray[Any] = np.frombuffer(data, np.dtype(dtype.name))
    if order != "K" or axes is None:
        return flat.reshape(shape, order="F" if order == "F" else "C")
    if not (isinstance(axes, (tuple, list)) and sorted(axes) == [*range(len(shape))]):
        raise RefusedError("this pickle holds an array with unknown dimensions")
    turned: npt.NDArray[Any] = flat.reshape(shape).transpose(axes)
    return turned


class _Encoder:
    """``_codecs.encode``, with which protocol 2 writes bytes; each text is encoded once."""

    def __init__(self) -> None:
        self._done: dict[str, bytes] = {}

    def __call__(self, text: object, encoding: object = "latin1") -> bytes:
        if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
            raise RefusedError("this pickle encodes something other than bytes")
        if text not in self._done:
            self._done[text] = text.encode("latin1")
        return self._done[text]


class _Dictionary(dict[Any, Any]):
    """A dictionary class: attributes are left out."""

    def __init__(self, items: Mapping[Any, Any] | Iterable[Any] = ()) -> None:
        pairs = items.items() if isinstance(items, Mapping) else items
        for key, value in pairs:
            if isinstance(key, (tuple, frozenset)):
                raise RefusedError("this pickle has a key of several values")
            self[key] = value

    def __setstate__(self, state: object) -> None:
        pass


DICTIONARY = _Dictionary


def _numpy_names() -> dict[str, Any]:
    encode = _Encoder()
    functions: dict[str, Callable[..., Any]] = {
        "multiarray._reconstruct": lambda *_: _Array(encode),
        "multiarray.scalar": lambda dtype, data: _Array(
            encode, _values(encode(data) if isinstance(data, str) else data, dtype, (), "C")
        ),
        "numeric._frombuffer": lambda *args: _Array(encode, _values(*args)),
    }
    return {
        **{
            f"numpy.{core}.{name}": StandIn(call)
            for core in ("core", "_core")  # numpy 2 moved them; both kinds of files exist
            for name, call in functions.items()
        },
        "numpy.ndarray": StandIn(lambda *_: refuse("numpy.ndarray")),
        "numpy.dtype": StandIn(_DType),
        "collections.OrderedDict": DICTIONARY,
        "_codecs.encode": StandIn(encode),
        "__builtin__.bytes": StandIn(lambda: b""),  # as protocol 2 writes an empty one
    }
