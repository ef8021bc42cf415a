"""Products of small matrices by PyTorch or NumPy, whichever is faster on this machine.

That depends on the processor, on the libraries and on the sizes, see ``nn.choices``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from costream.nn.choices import choices

_NAME = re.compile(r"(\d+) x (\d+) x (\d+), (\d+) threads?")


def matrix_product(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    """Return a function that sets ``out`` to the matrix product of ``a`` and ``b``, plain tensors.

    The function reads and writes their present memory.
    """
    if prefers_numpy(a.shape[0], a.shape[1], b.shape[1], torch.get_num_threads()):
        return _by_numpy(a, b, out)
    return _by_torch(a, b, out)


def _by_torch(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return partial(torch.mm, a, b, out=out)


def _by_numpy(a: Tensor, b: Tensor, out: Tensor) -> Callable[[], object]:
    return partial(np.dot, a.numpy(), b.numpy(), out.numpy())


@cache
def prefers_numpy(rows: int, inner: int, columns: int, threads: int) -> bool:
    """Return whether NumPy multiplies matrices of these sizes faster than PyTorch's ``threads``.

    False if NumPy has another library than OpenBLAS, or does not use it on one thread, as the
    command sets by OPENBLAS_NUM_THREADS.
    """
    if not _openblas_has_one_thread():
        return False
    sizes = rows, inner, columns
    return choices.fastest(f"{rows} x {inner} x {columns}", _ways(*sizes)) == "numpy"


def measure_again(known: Mapping[str, object]) -> None:
    """Measure the products among these works again, with the threads that their names have."""
    threads = torch.get_num_threads()
    prefers_numpy.cache_clear()
    for name in known:
        if found := _NAME.fullmatch(name):
            rows, inner, columns, count = map(int, found.groups())
            torch.set_num_threads(count)
            prefers_numpy(rows, inner, columns, count)
    torch.set_num_threads(threads)


def _ways(rows: int, inner: int, columns: int) -> dict[str, Callable[[], object]]:
    operands = torch.ones(rows, inner), torch.ones(inner, columns), torch.empty(rows, columns)
    return {"torch": _by_torch(*operands), "numpy": _by_numpy(*operands)}


def _openblas_has_one_thread() -> bool:
    from threadpoolctl import threadpool_info

    pools = [each for each in threadpool_info() if each["user_api"] == "blas"]
    return bool(pools) and all(
        (p["internal_api"], p["num_threads"]) == ("openblas", 1) for p in pools
    )
