"""Places that tests read from: the repository, its samples and weights, the data beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, WEIGHTS = ROOT / "samples", ROOT / "weights"
SHARED = ROOT.parent / "shared"  # not part of the repository: tests that need it skip without it
PACKS, REFS = SHARED / "packs", SHARED / "refs"
