"""Products of small matrices: which library, on how many threads, and that they are right."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_info

from costream.__main__ import main
from costream.models import blas as products
from costream.models.kept_times import KeptTimes
from costream.nn.choices import choices

# Prints the threads of NumPy's products, as the command has them.
THREADS = """
import sys
from costream.__main__ import main
main(["--version"])
import numpy
from threadpoolctl import threadpool_info
print(max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"))
"""
ONE_THREAD = [{"user_api": "blas", "internal_api": "openblas", "num_threads": 1}]
SIZES = 4, 3, 2, 1


@pytest.mark.slow
@pytest.mark.skipif(
    {p["internal_api"] for p in threadpool_info() if p["user_api"] == "blas"} != {"openblas"},
    reason="needs a NumPy with OpenBLAS, as 'pip install numpy' gives on Linux and Windows",
)
def test_the_command_multiplies_on_one_thread() -> None:
    found = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True)
    assert found.stdout.split()[-1] == "1"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of times in an empty cache, on a machine with one thread of OpenBLAS."""
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: ONE_THREAD)
    products.prefers_numpy.cache_clear()
    kept = KeptTimes()
    choices.keep_in(kept)
    yield kept.path
    choices.keep_in({})
    products.prefers_numpy.cache_clear()


def stored(cache: Path) -> dict[str, dict[str, float]]:
    (times,) = json.loads(cache.read_text()).values()
    return times  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("library", "threads"), [("openblas", 2), ("mkl", 1), (None, 1), ("openblas", 1)]
)
def test_products_are_timed_if_numpy_has_one_thread_of_openblas(
    library: str | None, threads: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = [{"user_api": "openmp", "internal_api": "openmp", "num_threads": 4}]
    if library is not None:
        pools.append({"user_api": "blas", "internal_api": library, "num_threads": threads})
    monkeypatch.setattr("threadpoolctl.threadpool_info", lambda: pools)
    products.prefers_numpy(*SIZES)
    assert cache.exists() is ((library, threads) == ("openblas", 1))


@pytest.mark.parametrize(("numpy_us", "preferred"), [(9.0, True), (9.6, False), (20.0, False)])
def test_a_choice_is_made_once_and_renewed_by_doctor(
    numpy_us: float, preferred: bool, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    products.prefers_numpy(*SIZES)
    (name,) = stored(cache)
    assert name == "4 x 3 x 2, 1 thread"
    (machine,) = json.loads(cache.read_text())
    known = {name: {"torch": 10.0, "numpy": numpy_us}, "a step": {"a": 2.0, "b": 1.0}}
    cache.write_text(json.dumps({machine: known}))
    choices.keep_in(KeptTimes())
    products.prefers_numpy.cache_clear()
    assert products.prefers_numpy(*SIZES) is preferred
    assert main(["doctor", "--tune"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in lines if line.startswith(name)] == ["yes"]
    assert [line.split()[-4:] for line in lines if line.startswith("a step")] == [
        ["b", "when", "next", "needed"]
    ]
    assert stored(cache)[name]["torch"] != 10.0
    assert "a step" not in stored(cache)


def test_doctor_skips_a_work_without_times(cache: Path) -> None:
    products.prefers_numpy(*SIZES)
    (machine,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({machine: {"a step": {}}}))
    assert main(["doctor", "--tune"]) == 0
    assert not KeptTimes()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"other machine": {}}'])
def test_a_damaged_file_of_times_is_written_again(content: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(content)
    products.prefers_numpy(*SIZES)
    assert len(KeptTimes()) == 1


@pytest.mark.parametrize("times", [[1.0], {"torch": "soon", "numpy": 1.0}, {"torch": 1.0}, None])
def test_damaged_times_are_measured_again(times: object, cache: Path) -> None:
    products.prefers_numpy(*SIZES)
    (name,) = stored(cache)
    (machine,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({machine: {name: times}}))
    choices.keep_in(KeptTimes())
    products.prefers_numpy.cache_clear()
    products.prefers_numpy(*SIZES)
    assert {*KeptTimes()[name]} == {"torch", "numpy"}


def test_the_times_of_the_first_process_stay(cache: Path) -> None:
    one, other = KeptTimes(), KeptTimes()
    assert not one
    assert not other  # each has read the file
    one["work"] = {"a": 1.0, "b": 2.0}
    other["work"] = {"a": 2.0, "b": 1.0}
    assert one["work"] == other["work"] == KeptTimes()["work"] == {"a": 1.0, "b": 2.0}
    other["more"] = {"a": 3.0}
    assert len(KeptTimes()) == 2


def test_without_a_cache_pytorch_multiplies(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.parent.parent.mkdir(exist_ok=True)
    cache.parent.write_text("")  # a file where the folder should be
    assert products.prefers_numpy(*SIZES) is False


@pytest.mark.parametrize("by_numpy", [False, True])
def test_a_product_reads_and_writes_where_its_tensors_are(
    by_numpy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "prefers_numpy", lambda *_: by_numpy)
    a, b, out = torch.zeros(4, 3), torch.randn(3, 2), torch.zeros(4, 2)
    multiply = products.matrix_product(a, b, out)
    a.normal_()
    multiply()
    torch.testing.assert_close(out, a @ b)


def test_a_file_of_times_that_cannot_be_written_is_told(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.mkdir(parents=True)
    (cache / "x").write_text("")
    assert main(["doctor", "--tune"]) == 0
    shown = capsys.readouterr().out
    assert f"{cache}: cannot be written (" in shown
    assert "measured in each run" in shown
    assert "work is added" not in shown
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]  # no parts are left
