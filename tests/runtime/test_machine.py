"""What this machine can do: default number of worker processes, fast bfloat16."""

from __future__ import annotations

import pytest

from costream.core import processor
from costream.models.catalogue import fast_dtype, find_weights
from costream.models.devices import has_fast_bfloat16
from costream.runtime.batch import pool
from costream.weights_io.file import read_card
from kit.choices import taking


@pytest.mark.parametrize(
    ("cores", "memory", "threads", "wanted"),
    [(8, None, 1, 8), (8, 64 << 30, 2, 4), (8, 3 << 30, 1, 3), (8, 1 << 20, 1, 1), (1, None, 4, 1)],
)
def test_cores_and_memory_decide(monkeypatch, cores, memory, threads, wanted):
    monkeypatch.setattr(pool, "cores", lambda: cores)
    monkeypatch.setattr(pool, "available_bytes", lambda: memory)
    assert pool.auto_jobs(threads) == wanted


def test_this_machine():
    assert 1 <= pool.auto_jobs() <= pool.cores()
    free = pool.available_bytes()
    assert free is None or free > 1 << 20


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_whether_bfloat16_is_fast_is_measured(kind: str) -> None:
    with taking(kind):
        assert has_fast_bfloat16() is (kind == "bfloat16")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("model\t: 143\nmodel name\t: A Xeon\n", "A Xeon"),
        ("CPU part\t: 0xd0b\n\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "aarch64 0x41 0xd0c"),
    ],
)
def test_processors_have_names(text, name, tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(processor.platform, "machine", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text(text)
    assert processor.processor() == name


@pytest.mark.parametrize(
    ("name", "has_bfloat16", "dtype"),
    [
        ("nanodet", True, "bfloat16"),
        ("nanodet", False, "float32"),
        ("mn04", True, "float32"),
    ],
)
def test_the_fast_precision_is_for_pictures_and_processors_that_have_it(
    name, has_bfloat16, dtype, monkeypatch, caplog
):
    monkeypatch.setattr("costream.models.devices.has_fast_bfloat16", lambda: has_bfloat16)
    card = read_card(find_weights(name))
    with caplog.at_level("INFO"):
        assert fast_dtype(card, "cpu") == dtype
    assert f"{name} is" in caplog.text
