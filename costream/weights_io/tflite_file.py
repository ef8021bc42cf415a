"""Reader of TFLite files: constants, and the operators that use them.

A TFLite file is a FlatBuffer (https://flatbuffers.dev/internals): tables whose fields are found
through a table of offsets. The fields that are read are numbered as in TensorFlow's schema.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

_KINDS = {3: "conv", 4: "depthwise", 6: "dequantize"}
_TYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 4: "<i8", 9: "i1"}
_Array: TypeAlias = npt.NDArray[Any]


class _Table:
    """One table of a FlatBuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._offsets = at - self._number("<i", at)

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Return a number, of a ``struct`` format."""
        place = self._place(field)
        return default if place is None else self._number(kind, place)

    def tables(self, field: int) -> list[_Table]:
        """Return a vector of tables."""
        return [_Table(self._data, at + self._number("<I", at)) for at in self._items(field)]

    def numbers(self, field: int) -> list[int]:
        """Return a vector of int32."""
        return [self._number("<i", at) for at in self._items(field)]

    def content(self, field: int) -> bytes:
        """Return a vector of bytes."""
        begin, count = self._vector(field)
        return self._data[begin : begin + count]

    def _items(self, field: int) -> Iterator[int]:
        begin, count = self._vector(field)
        if begin + 4 * count > len(self._data):
            raise ValueError("truncated")
        return iter(range(begin, begin + 4 * count, 4))

    def _vector(self, field: int) -> tuple[int, int]:
        place = self._place(field)
        if place is None:
            return 0, 0
        begin = place + self._number("<I", place)
        return begin + 4, self._number("<I", begin)

    def _place(self, field: int) -> int | None:
        slot = 4 + 2 * field
        if slot >= self._number("<H", self._offsets):
            return None
        offset = self._number("<H", self._offsets + slot)
        return self._at + offset if offset else None

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("an offset before the file")
        return int(struct.unpack_from(kind, self._data, at)[0])


def read_tflite(data: bytes) -> dict[str, Any]:
    """Return the first graph of a file.

    Constants are ``tflite.NUMBER`` by the number of their tensor; that of what is converted to
    float32 is the constant's too. ``args`` has ``outputs``, number and shape of each, and
    ``operators`` in their order: ``kind`` ("conv", "depthwise", "dequantize" or a code),
    ``inputs``, ``outputs``. Raises ValueError, KeyError or struct.error for a damaged file.
    """
    model = _Table(data, struct.unpack_from("<I", data, 0)[0])
    codes = [max(code.number(0, "<b"), code.number(3, "<i")) for code in model.tables(1)]
    graph, buffers = model.tables(2)[0], model.tables(4)
    tensors = graph.tables(0)
    shapes = [tensor.numbers(0) for tensor in tensors]
    arrays: dict[str, Any] = {}
    for number, (tensor, shape) in enumerate(zip(tensors, shapes, strict=True)):
        content = buffers[tensor.number(2, "<I")].content(0)
        if content:
            arrays[f"tflite.{number}"] = _array(content, tensor.number(1, "<b"), shape)
    operators = []
    for operator in graph.tables(3):
        code = codes[operator.number(0, "<I")]
        inputs, outputs = operator.numbers(1), operator.numbers(2)
        kind = _KINDS.get(code, str(code))
        if kind == "dequantize" and f"tflite.{inputs[0]}" in arrays:
            arrays[f"tflite.{outputs[0]}"] = arrays.pop(f"tflite.{inputs[0]}")
        operators.append({"kind": kind, "inputs": inputs, "outputs": outputs})
    ends = [(number, shapes[number]) for number in graph.numbers(2)]
    return {"args": {"outputs": ends, "operators": operators}, "model": arrays}


def _array(content: bytes, kind: int, shape: list[int]) -> _Array:
    array: _Array = np.frombuffer(content, _TYPES[kind]).reshape(shape).copy()
    return array
