"""The skeleton recipe without its packs, and the size of the shipped weights."""

from __future__ import annotations

import pytest

from costream.errors import UsageError
from kit.paths import WEIGHTS
from weights.recipes.skeleton.data import read_pack
from weights.recipes.skeleton.train import main


def test_a_missing_pack_is_told(tmp_path, capsys):
    with pytest.raises(UsageError, match="--packs"):
        read_pack(tmp_path, "bandai")
    assert main(["--packs", str(tmp_path)]) == 2
    assert "the training motions are missing" in capsys.readouterr().err


def test_the_weights_are_small():
    assert (WEIGHTS / "costgcn.safetensors").stat().st_size < 2_000_000
