"""Products of small matrices: which library, on how many threads, and that they are right."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

from costream.models import blas as products

# Prints the threads of NumPy's products, and whether they are preferred, as the command has them.
THREADS = """
import sys
from costream.__main__ import main
main(["--version"])
import numpy
from threadpoolctl import threadpool_info
from costream.models.blas import prefers_numpy
print(max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"))
print(prefers_numpy())
"""


@pytest.mark.slow
@pytest.mark.skipif(
    {p["internal_api"] for p in threadpool_info() if p["user_api"] == "blas"} != {"openblas"},
    reason="needs a NumPy with OpenBLAS, as 'pip install numpy' gives on Linux and Windows",
)
def test_the_command_multiplies_on_one_thread() -> None:
    found = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    *_, threads, preferred = found.stdout.split()
    assert threads == "1"
    assert preferred == str(is_amd() and torch.backends.mkl.is_available())


def is_amd() -> bool:
    described = Path("/proc/cpuinfo")
    return "AuthenticAMD" in (described.read_text() if described.exists() else platform.processor())


@pytest.mark.parametrize(
    ("library", "threads", "preferred"),
    [("openblas", 1, True), ("openblas", 2, False), ("mkl", 1, False), (None, 1, False)],
)
def test_products_by_numpy_are_for_one_thread_of_openblas(
    library: str | None, threads: int, preferred: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [{"user_api": "openmp", "internal_api": "openmp", "num_threads": 4}]
    if library is not None:
        pools.append({"user_api": "blas", "internal_api": library, "num_threads": threads})
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: pools)
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "vendor_id : AuthenticAMD")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products.prefers_numpy.__wrapped__() is preferred
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "vendor_id : GenuineIntel")
    assert products.prefers_numpy.__wrapped__() is False


@pytest.mark.parametrize("by_numpy", [False, True])
def test_a_product_reads_and_writes_where_its_tensors_are(
    by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "prefers_numpy", lambda: by_numpy)
    a, b, out = torch.zeros(4, 3), torch.randn(3, 2), torch.zeros(4, 2)
    multiply = products.matrix_product(a, b, out)
    a.normal_()
    multiply()
    torch.testing.assert_close(out, a @ b)
