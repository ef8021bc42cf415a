"""Products of small matrices by PyTorch or NumPy, whichever is faster on this machine.

That depends on the processor, on the libraries and on the sizes, so it is measured when a network
first needs a product, in some milliseconds. The times are kept in the user's cache: all later runs
take the same library, and their results are the same bit by bit. Where nothing can be kept, PyTorch
multiplies.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from costream.core.locks import open_own
from costream.core.processor import processor
from costream.weights_io.store import cache_folder

GAIN = 0.95  # NumPy is taken if it needs less than this share of PyTorch's time
_ROUNDS, _TURN_S = 15, 1e-4  # of each library in turns; a turn takes at least so long
_NAME = re.compile(r"(\d+) x (\d+) x (\d+), (\d+) threads?")

# Microseconds of a product by each library, by the name of the product.
Times: TypeAlias = dict[str, dict[str, float]]


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
    """Return whether NumPy multiplies matrices of these sizes faster than PyTorch.

    It is measured if no earlier run did. False if NumPy has another library than OpenBLAS, or does
    not use it on one thread, as the command sets by OPENBLAS_NUM_THREADS.
    """
    if not _openblas_has_one_thread():
        return False
    name = f"{rows} x {inner} x {columns}, {threads} thread{'s' * (threads > 1)}"
    known = stored_times()
    if name not in known:
        if not _keep({name: _measure(rows, inner, columns)}, again=False):
            return False
        known = stored_times()
    return name in known and chosen(known[name]) == "numpy"


def chosen(times: dict[str, float]) -> str:
    """Return the library that is taken for these times, "torch" or "numpy"."""
    return "numpy" if times["numpy"] < GAIN * times["torch"] else "torch"


def times_file() -> Path:
    """Return the file in the user's cache that holds the times of all machines of this home."""
    return cache_folder().parent / "products.json"


def stored_times() -> Times:
    """Return the times that were measured on this machine with these libraries."""
    times = _read().get(_machine(), {})
    return times if isinstance(times, dict) else {}


def renew() -> Times:
    """Measure again what was measured before on this machine; return the times now stored."""
    threads = torch.get_num_threads()
    times: Times = {}
    for name in stored_times():
        found = _NAME.fullmatch(name)
        if found is not None:
            *sizes, count = map(int, found.groups())
            torch.set_num_threads(count)
            times[name] = _measure(*sizes)
    torch.set_num_threads(threads)
    _keep(times, again=True)
    prefers_numpy.cache_clear()
    return stored_times()


def _measure(rows: int, inner: int, columns: int) -> dict[str, float]:
    """Return the microseconds of a product by each library: the fastest of turns."""
    operands = torch.ones(rows, inner), torch.ones(inner, columns), torch.empty(rows, columns)
    forms = {"torch": _by_torch(*operands), "numpy": _by_numpy(*operands)}
    times = dict.fromkeys(forms, float("inf"))
    for _ in range(_ROUNDS):
        for name, form in forms.items():
            form()  # refill the cache
            count, begun = 0, time.perf_counter()
            while (spent := time.perf_counter() - begun) < _TURN_S or not count:
                form()
                count += 1
            times[name] = min(times[name], round(1e6 * spent / max(count, 1), 2))
    return times


def _openblas_has_one_thread() -> bool:
    from threadpoolctl import threadpool_info

    pools = [each for each in threadpool_info() if each["user_api"] == "blas"]
    return bool(pools) and all(
        (p["internal_api"], p["num_threads"]) == ("openblas", 1) for p in pools
    )


def _machine() -> str:
    return f"{processor()}, torch {torch.__version__}, numpy {np.__version__}"


def _read() -> dict[str, Any]:
    """Return the content of the file, empty if there is none or it is damaged."""
    with suppress(OSError, ValueError):
        content = json.loads(times_file().read_text("utf-8"))
        return content if isinstance(content, dict) else {}
    return {}


def _keep(times: Times, *, again: bool) -> bool:
    """Store times of this machine; return whether that was possible.

    ``again``: replace those of the same products; else the times of the first process stay.
    """
    path = times_file()
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = stored_times()
        joined = {**before, **times} if again else {**times, **before}
        text = json.dumps({**_read(), _machine(): joined}, indent=1)
        with open(part, "w", encoding="utf-8", opener=open_own) as file:
            file.write(text)
        os.replace(part, path)
    except OSError:
        return False
    return True
