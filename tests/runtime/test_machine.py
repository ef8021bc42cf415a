"""What this machine can do: default number of worker processes, fast bfloat16."""

from __future__ import annotations

import pytest
import torch

from costream.core import processor
from costream.models.catalogue import load_model
from costream.models.devices import has_fast_bfloat16
from costream.nn.choices import choices
from costream.runtime.batch import pool
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
    ("name", "fastest", "low"),
    [("encoder", "bfloat16", True), ("encoder", "float32", False), ("mn04", "bfloat16", False)],
)
def test_the_fast_precision_is_for_pictures_where_it_is_faster(name, fastest, low, caplog):
    with taking(fastest), caplog.at_level("INFO"):
        model = load_model(name, dtype="fast")
    parameters = *model.network.parameters(), *model.frontend.parameters()
    assert (torch.bfloat16 in {each.dtype for each in parameters}) is low
    assert name in caplog.text


def test_a_model_that_is_slower_in_bfloat16_stays_in_float32(caplog):
    """Though the processor multiplies matrices faster in it."""
    times = {
        "either type, 128 x 512 x 512, 1 thread": {"float32": 2.0, "bfloat16": 1.0},
        "pictures, nanodet, 1 thread": {"float32": 1.0, "bfloat16": 2.5},
    }
    choices.keep_in(times)
    with caplog.at_level("INFO"):
        model = load_model("nanodet", dtype="fast")
    choices.keep_in({})
    assert {p.dtype for p in model.network.parameters()} == {torch.float32}
    assert "nanodet is computed in float32: it is not faster in bfloat16" in caplog.text
    assert len(times) == 2
