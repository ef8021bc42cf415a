"""Devices and types of numbers by the names that users give."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch

from costream.core.errors import ModelError
from costream.nn import fused
from costream.nn.choices import choices

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
_ROWS, _WIDTH = 128, 512  # of the product that tells whether bfloat16 is fast


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its work, which is asynchronous on a GPU.

    Without this its time would be attributed to the code that reads the result.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def convolution_library() -> str:
    """Return what computes convolutions with their activation, for ``costream doctor``."""
    return "oneDNN, packed weights" if fused.available() else "torch.conv2d, not packed"


def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 faster than float32, by measuring.

    On an AMD EPYC (Zen 4, AVX-512 BF16) it is 2.1 times as fast, on a Xeon with AVX-512 BF16 but no
    AMX half as fast (PyTorch 2.13). Other processors emulate bfloat16, many times slower.
    """

    def product(kind: torch.dtype) -> Callable[[], object]:
        return partial(torch.mm, torch.ones(_ROWS, _WIDTH, dtype=kind), weight.to(kind))

    weight = torch.ones(_WIDTH, _WIDTH)
    ways = {"float32": product(torch.float32), "bfloat16": product(torch.bfloat16)}
    work = f"either type, {_ROWS} x {_WIDTH} x {_WIDTH}"
    return choices.fastest(work, ways) == "bfloat16"


def find_dtype(name: str, allowed: Collection[str] = DTYPES) -> torch.dtype:
    """Return a type of weights. Raises ModelError for a name that is not among ``allowed``."""
    if name in DTYPES and name not in allowed:
        hint = f"possible are {', '.join(allowed)}"
        raise ModelError(f"this model cannot be computed in {name}", hint=hint)
    if name not in allowed:
        raise ModelError(f"unknown type {name!r}", hint=f"known are {', '.join(allowed)}")
    return DTYPES[name]


def find_device(name: str) -> torch.device:
    """Return a device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises ModelError for one that is unknown or unavailable.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ModelError(
            f"unknown device {name!r}", hint="use auto, cpu, cuda, cuda:N or mps"
        ) from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        available, reason = (device.index or 0) < count, f"{count} CUDA devices here"
    elif device.type == "mps":
        available, reason = torch.backends.mps.is_available(), "no Apple GPU here"
    else:
        available, reason = False, "costream runs on cpu, cuda and mps"
    if not available:
        raise ModelError(f"device {name!r} is not available ({reason})", hint="use the device cpu")
    return device
