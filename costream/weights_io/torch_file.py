"""Files of ``torch.save``, both formats, read without torch's unpickler.

Tensors are descriptions until the pickle has been read; then each is cut out of its storage, and
no storage, size or stride is believed that does not fit the file.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from typing import Any, NoReturn

import torch
from torch import Tensor

from costream.core import pickles
from costream.core.pickles import DICTIONARY, Described, RefusedError, StandIn

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # of the format before torch 1.6
_PROTOCOL = 1001
# Complete training states reference the classes of the trainer, its schedulers, callbacks, logs
# and configuration.
_TRAINERS = (
    *("pytorch_lightning.", "lightning.", "ride.", "torch.optim."),
    *("mmengine.", "mmcv.", "omegaconf.", "typing."),
)
_DTYPES = {f"torch.{n}": v for n, v in vars(torch).items() if isinstance(v, torch.dtype)}
# Types that a defaultdict and the fields of OmegaConf refer to, also by their names in Python 2,
# which pickles of protocol 2 contain, and classes of paths.
_TYPES = (
    *("list", "dict", "int", "float", "str", "bool", "tuple", "object", "slice", "complex"),
    *("long", "unicode"),
)
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path")
_STORAGES = {
    **{
        f"{name}Storage": getattr(torch, dtype)
        for name, dtype in {
            "Double": "float64",
            "Float": "float32",
            "Half": "float16",
            "BFloat16": "bfloat16",
            "Long": "int64",
            "Int": "int32",
            "Short": "int16",
            "Char": "int8",
            "Byte": "uint8",
            "Bool": "bool",
            "ComplexDouble": "complex128",
            "ComplexFloat": "complex64",
        }.items()
    },
    "storage.UntypedStorage": torch.uint8,
}


class Namespace:
    """The ``argparse.Namespace`` of a training script."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields."""
        self.fields = dict(state)


class TrainerObject:
    """Inert substitute for a trainer's class; only the weights in the same file are needed."""

    def __init__(self, *args: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        """Discard the state."""


class SparseTensor:
    """A sparse tensor, which is not read."""

    def __init__(self, *args: object) -> None:
        """Accept any arguments."""

    def __setstate__(self, state: object) -> None:
        """Discard the state."""


def _attribute(owner: object, name: object) -> type[TrainerObject]:
    """Replace ``getattr``, with which pickles reference methods of a scheduler's class."""
    return TrainerObject if owner is TrainerObject else pickles.refuse("builtins.getattr")


class _StorageType:
    __slots__ = ("dtype",)

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __setstate__(self, state: object) -> NoReturn:
        raise RefusedError("this pickle changes a type")


class _Storage:
    __slots__ = ("data", "dtype", "n")

    def __init__(self, dtype: torch.dtype, n: int) -> None:
        self.dtype = dtype
        self.n = n
        self.data: Tensor | None = None

    def __setstate__(self, state: object) -> NoReturn:
        raise RefusedError("this pickle changes a storage")

    @property
    def nbytes(self) -> int:
        return self.n * self.dtype.itemsize

    def fill(self, raw: bytes) -> None:
        """Take the numbers; raise RefusedError if the file holds another number of them."""
        if len(raw) != self.nbytes:
            raise RefusedError(f"a storage of {self.nbytes} bytes has {len(raw)} in the file")
        if raw:
            self.data = torch.frombuffer(bytearray(raw), dtype=self.dtype)
        else:
            self.data = torch.empty(0, dtype=self.dtype)


class _TensorDescription(Described):
    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(
        self, storage: object, offset: object, shape: object, stride: object, dtype: object = None
    ) -> None:
        sizes = [offset, *_integers(shape), *_integers(stride)]
        if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in sizes):
            raise RefusedError("a tensor without a storage or size")
        self.storage = storage
        self.offset, self.shape, self.stride = offset, shape, stride
        self.dtype = storage.dtype if dtype is None else _DTYPES[str(dtype)]

    def __setstate__(self, state: object) -> None:
        pass

    def value(self) -> Tensor:
        if self.storage.data is None:
            raise RefusedError("a storage is missing")
        # torch checks that sizes and strides stay within the storage.
        return self.storage.data.view(self.dtype).as_strided(self.shape, self.stride, self.offset)  # type: ignore[arg-type]


def _integers(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or any(type(n) is not int for n in value):
        raise RefusedError("a size that is not a tuple of integers")
    return value


class DefaultDictionary(DICTIONARY):
    """A ``collections.defaultdict`` without the function that makes its defaults."""

    def __init__(self, *_: object) -> None:
        """Accept the function; the items follow."""
        super().__init__()


def _parameter(data: object, *_: object) -> object:
    return data


def _joined(*parts: object) -> str:
    """Return a path as text."""
    return "/".join(map(str, parts)).replace("//", "/")


def _items(items: object = ()) -> object:
    return items


_NAMES: dict[str, Any] = {
    "argparse.Namespace": Namespace,
    "collections.Counter": DICTIONARY,
    "collections.defaultdict": DefaultDictionary,
    **dict.fromkeys(
        (f"{place}.{kind}" for place in ("builtins", "__builtin__") for kind in _TYPES),
        TrainerObject,
    ),
    **dict.fromkeys((f"pathlib.{kind}" for kind in _PATHS), StandIn(_joined)),
    **dict.fromkeys((f"pathlib._local.{kind}" for kind in _PATHS), StandIn(_joined)),
    "__builtin__.getattr": StandIn(_attribute),
    "builtins.getattr": StandIn(_attribute),
    "__builtin__.set": StandIn(_items),
    "torch.Size": StandIn(_integers),
    "torch.device": StandIn(lambda kind, *_: kind),
    "torch.nn.parameter.Parameter": StandIn(_parameter),
    "torch._utils._rebuild_parameter": StandIn(_parameter),
    "torch._utils._rebuild_tensor": StandIn(_TensorDescription),
    "torch._utils._rebuild_tensor_v2": StandIn(
        lambda storage, offset, shape, stride, *_: _TensorDescription(
            storage, offset, shape, stride
        )
    ),
    "torch._utils._rebuild_tensor_v3": StandIn(
        lambda storage, offset, shape, stride, _grad, _hooks, dtype, *_: _TensorDescription(
            storage, offset, shape, stride, dtype
        )
    ),
    "torch._utils._rebuild_sparse_tensor": SparseTensor,
    "torch.serialization._get_layout": StandIn(lambda name: name),
}


def checkpoint_name(name: str) -> Any:
    """Return the replacement of a name in a checkpoint; None for one that is refused."""
    if name in _DTYPES:
        return name
    if name.startswith("torch.") and name[6:].removeprefix("cuda.") in _STORAGES:
        return _StorageType(_STORAGES[name[6:].removeprefix("cuda.")])
    if name.startswith(_TRAINERS):
        return DICTIONARY if name.endswith("Dict") else TrainerObject
    return _NAMES.get(name)


class _Storages:
    """The storages that a pickle names, by their key."""

    def __init__(self) -> None:
        self.found: dict[str, _Storage] = {}

    def __call__(self, pid: object) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) not in (5, 6) or any(pid[5:]):
            raise RefusedError("this pickle refers to something other than a storage")
        kind, storage_type, key, _place, n = pid[:5]
        if not (
            kind == "storage"
            and isinstance(storage_type, _StorageType)
            and isinstance(key, str)
            and type(n) is int
            and n >= 0
        ):
            raise RefusedError("this pickle refers to something other than a storage")
        storage = self.found.setdefault(key, _Storage(storage_type.dtype, n))
        if (storage.dtype, storage.n) != (storage_type.dtype, n):
            raise RefusedError("this pickle refers to a storage in two ways")
        return storage


def read_zip(archive: zipfile.ZipFile) -> Any:
    """Return the content of a zip file that torch wrote."""
    storages = _Storages()
    (pickle,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    folder = pickle.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist():
        _check_order(archive.read(f"{folder}byteorder") == b"little")
    described = pickles.load(io.BytesIO(archive.read(pickle)), checkpoint_name, storages)
    for key, storage in storages.found.items():
        storage.fill(archive.read(f"{folder}data/{key}"))
    return pickles.plain(described)


def read_old(content: mmap.mmap) -> Any:
    """Return the content of a file that torch before 1.6 wrote."""
    storages = _Storages()
    content.seek(len(MAGIC))
    if pickles.load(content) != _PROTOCOL:
        raise RefusedError("unknown protocol of torch")
    system = pickles.load(content)
    _check_order(system["little_endian"])
    described = pickles.load(content, checkpoint_name, storages)
    for key in pickles.load(content):
        (n,) = struct.unpack("<q", content.read(8))
        storage = storages.found[key]
        if n != storage.n:
            raise RefusedError(f"a storage of {storage.n} numbers has {n} in the file")
        storage.fill(content.read(storage.nbytes))
    return pickles.plain(described)


def _check_order(little: object) -> None:
    if not little:
        raise RefusedError("written on a machine of another byte order")
