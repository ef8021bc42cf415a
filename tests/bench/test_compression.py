"""The table of base, pruned and int8 forms."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from costream.bench.compression import compression_table
from costream.core.errors import UsageError
from costream.models.build import save_model
from costream.models.random_init import random_model


def test_forms_are_compared_with_the_first(tmp_path):
    files = []
    for width in (64, 32):
        sizes = {"input_width": 16, "num_classes": 3, "embed_dim": width, "feedforward": width}
        card, network, _ = random_model("cooadtr", "x", sizes, None, 0)
        files.append(str(tmp_path / f"w{width}.safetensors"))
        save_model(tmp_path / f"w{width}.safetensors", card, network)
    table = compression_table(files, 1, 1)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    others = [name for name in rows if "alone" in name]
    for name in others:
        assert rows[name]["score difference"] < 1e-5
        assert rows[name]["step MMAC"] > 0 < rows[name]["us a step"]
    if find_spec("onnxruntime") is not None:
        assert "w64.safetensors, ONNX Runtime, network alone" in others
    assert [name for name in rows if name not in others] == [
        "w64.safetensors", "w64.safetensors, int8", "w32.safetensors", "w32.safetensors, int8"
    ]  # fmt: skip
    whole, small, narrow, _ = (row for name, row in rows.items() if name not in others)
    assert small["weights MB"] < 0.6 * whole["weights MB"]
    assert narrow["step MMAC"] < small["step MMAC"] == whole["step MMAC"]
    assert whole["score difference"] == 0 < small["score difference"] < narrow["score difference"]
    assert whole["state KB"] == small["state KB"] > narrow["state KB"]
    again = tmp_path / "again"
    again.mkdir()
    same = str(again / "w64.safetensors")  # of the same name in another folder
    save_model(Path(same), card, network)
    table = compression_table([files[0], same], 1, 1)
    macs = {row[0]: row[table.columns.index("step MMAC")] for row in table.rows}
    assert macs[files[0]] > macs[same]
    other = tmp_path / "other.safetensors"
    save_model(other, replace(card, labels=("a", "b", "c")), network)
    with pytest.raises(UsageError, match="other labels"):
        compression_table([files[0], str(other)], 1, 1)


@pytest.mark.slow
def test_steps_of_files_are_timed_together(tmp_path):
    sizes = {"num_classes": 3, "embed_dim": 8, "num_heads": 2, "feedforward": 8, "window": 4}
    sizes |= {"frontend.box": [32, 24], "frontend.widths": [8, 8, 8, 8]}
    card, network, frontend = random_model("cooadtr", "x", sizes, "tdn", 0)
    save_model(tmp_path / "small.safetensors", card, network, frontend)
    table = compression_table([str(tmp_path / "small.safetensors")], 3, 1)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    one, many = rows["small.safetensors"], rows["small.safetensors, in files"]
    assert one["step MMAC"] == many["step MMAC"]
    assert one["of the first"] == many["of the first"] == 1  # each beside its own kind
    assert rows["small.safetensors, int8, in files"]["of the first"] > 0
    assert any(note.startswith("in files: 16 steps") for note in table.notes)
