"""Weight files: safetensors with a model card and a checksum in the metadata.

The metadata of a file contains ``format`` ("costream-weights/1"), ``card`` (JSON, see
card.py) and ``tensors_sha256``: the digest of names, types, shapes and bytes of all tensors,
which makes a file self-checking. Reading the header needs only the standard library. Tensors that
are equal to those of another file in the same folder may be stored there only: ``shares`` in the
metadata (JSON) has its name (``file``) and their names (``tensors``); the digest is over all of
them. The steps that ``models export`` writes as ONNX have a card too, and the digest of the weights
they are made of.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costream.core.errors import ModelError, OutputError
from costream.core.locks import open_own
from costream.weights_io.card import Card

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, STEP_FORMAT = "costream-weights/1", "costream-step/1"
SUFFIX, STEP_SUFFIX = ".safetensors", ".onnx"
_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}


@dataclass(frozen=True)
class TensorInfo:
    """Metadata of one tensor: safetensors type name, shape and byte range."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """Header of a safetensors file, or of an exported step: only its metadata, no tensors."""

    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]


@dataclass(frozen=True)
class Weights:
    """A weight file in memory."""

    card: Card
    sha256: str  # of the tensors, as in the metadata; checked
    tensors: dict[str, Tensor]


def read_header(path: Path) -> SafetensorsHeader:
    """Return the header of any safetensors or ONNX file without reading its tensors.

    Raises ModelError when the file is missing, not such a file or truncated.
    """
    if path.suffix == STEP_SUFFIX:
        return SafetensorsHeader(_onnx_metadata(path), {})
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(9)
            length = int.from_bytes(start[:8], "little")
            if len(start) < 9 or start[8:] != b"{" or length > _MAX_HEADER:
                raise ModelError("not a safetensors file", where=path)
            text = b"{" + file.read(length - 1)
    except FileNotFoundError as error:
        raise ModelError("there is no such file", where=path) from error
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror or error})", where=path) from error
    if len(text) < length:
        raise _truncated(path, 8 + length - size)
    try:
        raw = json.loads(text)
        metadata = {str(k): str(v) for k, v in raw.pop("__metadata__", {}).items()}
        tensors = {str(name): _info(entry, 8 + length) for name, entry in raw.items()}
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
        raise ModelError("not a safetensors file (damaged header)", where=path) from e
    end = max((info.end for info in tensors.values()), default=8 + length)
    if end > size:
        raise _truncated(path, end - size)
    return SafetensorsHeader(metadata, tensors)


def all_tensors(path: Path) -> dict[str, TensorInfo]:
    """Return type, shape and place of all tensors of a weight file, shared ones included.

    Raises ModelError as ``read_header`` does, and if the file that it shares tensors with is
    missing or has other ones.
    """
    header = read_header(path)
    other, names = _shared(header, path)
    if not names:
        return header.tensors
    theirs = read_header(other).tensors
    if missing := set(names) - theirs.keys():
        raise ModelError(f"has no {min(missing)}, which {path.name} shares", where=other)
    return header.tensors | {name: theirs[name] for name in names}


def read_card(path: Path) -> Card:
    """Return the model card of a weight file, or of a step, without torch or tensors.

    Raises ModelError when it is not such a file, has no card, or has a newer format.
    """
    return card_in(read_header(path), path)


def read_weights(path: Path) -> Weights:
    """Return card and tensors (on the CPU), checked against their digest.

    Raises ModelError as ``read_card`` does, for a step, and when the tensors do not match the
    digest.
    """
    if path.suffix == STEP_SUFFIX:
        hint = "use the weight file that it was exported from"
        raise ModelError("a step for running only, not weights", where=path, hint=hint)
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    header = read_header(path)
    card = card_in(header, path)
    all_tensors(path)  # reports shared ones that are missing
    other, names = _shared(header, path)
    try:
        tensors = load_file(path)
        if names:
            with safe_open(other, framework="pt") as file:
                tensors |= {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ModelError(f"not a valid safetensors file ({error})", where=path) from error
    sha256 = header.metadata.get("tensors_sha256", "")
    if tensors_digest(tensors) != sha256:
        raise ModelError(
            "the tensors do not match their checksum: the file is damaged",
            where=path,
            hint="copy or import it again",
        )
    return Weights(card, sha256, tensors)


def write_weights(
    path: Path, card: Card, tensors: Mapping[str, Tensor], shares: Path | None = None
) -> str:
    """Write a weight file atomically; return the digest of the tensors.

    The same card and tensors give the same bytes (the writer of safetensors shuffles the metadata
    and makes the file unreadable for other users). ``shares``: a weight file in the same folder;
    tensors that it has under the same names are not written. Raises OutputError when the file
    cannot be written, ModelError as ``read_weights`` if ``shares`` cannot be read.
    """
    sha256 = tensors_digest(tensors)
    metadata = {"format": FORMAT, "card": card.to_json(), "tensors_sha256": sha256}
    if shares is not None:
        stored, inside = read_weights(shares).tensors, read_header(shares).tensors
        names = _equal(tensors, {name: stored[name] for name in inside})
        metadata["shares"] = json.dumps({"file": shares.name, "tensors": names})
        tensors = {name: tensors[name] for name in tensors.keys() - set(names)}
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name in sorted(tensors):
        nbytes = tensors[name].numel() * tensors[name].element_size()
        header[name] = {
            "dtype": _dtype_name(tensors[name]),
            "shape": list(tensors[name].shape),
            "data_offsets": [at, at + nbytes],
        }
        at += nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to a multiple of 8
    write_whole(
        path,
        [len(text).to_bytes(8, "little"), text, *(_bytes(tensors[k]) for k in sorted(tensors))],
    )
    return sha256


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of name, type, shape and bytes of all tensors, in order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        entry = [name, _dtype_name(tensor), list(tensor.shape)]
        digest.update(json.dumps(entry).encode() + b"\n")
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _equal(tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> list[str]:
    """Return the names under which both have the same bytes."""
    names = sorted(tensors.keys() & others.keys())
    return [k for k in names if tensors_digest({k: tensors[k]}) == tensors_digest({k: others[k]})]


def _shared(header: SafetensorsHeader, path: Path) -> tuple[Path, list[str]]:
    """Return the file that a weight file shares tensors with, and their names; none: itself.

    Raises ModelError if the metadata is damaged, or there is no such file.
    """
    text = header.metadata.get("shares")
    if text is None:
        return path, []
    try:
        entry = json.loads(text)
        name, names = str(entry["file"]), [str(each) for each in entry["tensors"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelError("not a weight file (damaged metadata: shares)", where=path) from error
    if Path(name).name != name or name == path.name:  # nothing outside of the folder
        raise ModelError(f"shares tensors with {name!r}, which is not a file beside it", where=path)
    other = path.with_name(name)
    if names and not other.is_file():
        hint = f"copy {name} into the same folder, too"
        what = f"some of its tensors are stored in {name}, which is missing"
        raise ModelError(what, where=path, hint=hint)
    return other, names


def _info(entry: dict[str, Any], start: int) -> TensorInfo:
    dtype, shape = entry["dtype"], tuple(int(n) for n in entry["shape"])
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end or end - begin != math.prod(shape) * _ITEM_BYTES[dtype]:
        raise ValueError("offsets do not fit the shape")
    return TensorInfo(dtype, shape, start + begin, start + end)


def _onnx_metadata(path: Path) -> dict[str, str]:
    """Return the ``metadata_props`` of an ONNX file: a protobuf message, see onnx.proto."""
    try:
        with path.open("rb") as file:  # only the parts that are used are read
            data = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        entries = [dict(_fields(value)) for number, value in _fields(data) if number == 14]
        return {str(entry[1], "utf-8"): str(entry[2], "utf-8") for entry in entries}
    except OSError as error:
        raise ModelError(f"cannot be read ({error.strerror or error})", where=path) from error
    except (ValueError, KeyError, IndexError) as error:
        raise ModelError("not an ONNX file, or a damaged one", where=path) from error


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the number and the bytes of each field of a protobuf message that is text or bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        size, at = _varint(message, at)  # or the value of an integer
        if tag & 7 == 2:
            if at + size > len(message):
                raise ValueError("truncated")
            yield tag >> 3, message[at : at + size]
            at += size
        elif tag & 7:
            raise ValueError("a field of a type that ONNX files do not have")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the integer at a position of a protobuf message, and the position after it."""
    value = 0
    for place in range(10):  # a number has 64 bits at most
        value |= (message[at + place] & 0x7F) << 7 * place
        if message[at + place] < 0x80:
            return value, at + place + 1
    raise ValueError("a number of more than 64 bits")


def card_in(header: SafetensorsHeader, path: Path) -> Card:
    """Return the model card in the header of a file. ModelError as ``read_card``."""
    step = path.suffix == STEP_SUFFIX
    text = header.metadata.get("card")
    if text is None:
        made = "write one with: costream models export NAME"
        hint = made if step else "convert it with: costream models import FILE"
        kind = "ONNX" if step else "safetensors"
        raise ModelError(f"this {kind} file has no model card", where=path, hint=hint)
    version, readable = header.metadata.get("format", ""), STEP_FORMAT if step else FORMAT
    if version != readable:
        raise ModelError(
            f"its format is {version!r}, but this version reads {readable!r}",
            where=path,
            hint="update costream",
        )
    try:
        return Card.from_json(text)
    except ModelError as error:
        raise ModelError(str(error), where=path) from error


def _truncated(path: Path, missing: int) -> ModelError:
    return ModelError(
        f"the file is truncated: at least {missing} bytes are missing",
        where=path,
        hint="copy or download it again",
    )


def _dtype_name(tensor: Tensor) -> str:
    import torch

    names = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
    if tensor.dtype not in names:
        raise ModelError(f"tensors of type {tensor.dtype} cannot be stored")
    return names[tensor.dtype]


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def write_whole(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write ``path`` atomically: to a temporary file that is renamed; OutputError on failure."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb", opener=open_own) as file:
            for block in parts:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise OutputError(f"cannot be written ({error.strerror or error})", where=path) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
