"""A checkpoint as researchers have them, small."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch


def foreign(folder: Path) -> Path:
    """An old CoOadTR checkpoint of random weights."""
    torch.manual_seed(0)

    def linear(name: str, rows: int, columns: int) -> dict[str, Any]:
        return {f"{name}.weight": torch.randn(rows, columns), f"{name}.bias": torch.zeros(rows)}

    def norm(name: str) -> dict[str, Any]:
        return {f"{name}.weight": torch.ones(8), f"{name}.bias": torch.zeros(8)}

    weights = {
        **linear("0", 8, 6),
        "1.pe.weight": torch.randn(4, 8),
        "3.0.1.in_proj_weight": torch.randn(24, 8),
        "3.0.1.out_proj.weight": torch.randn(8, 8),
        **norm("3.1.fn"),
        **linear("3.2.1.0", 8, 8),
        **linear("3.2.1.3", 8, 8),
        **norm("3.3.fn"),
        **norm("4.fn"),
        **linear("5", 22, 8),
    }
    args = argparse.Namespace(num_heads=2, enc_layers=4)
    torch.save({"model": weights, "args": args}, folder / "checkpoint.pth")
    return folder / "checkpoint.pth"
