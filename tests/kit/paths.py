"""Places that tests read from: the repository, its samples and weights, the data beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLES, WEIGHTS = ROOT / "samples", ROOT / "weights"
RESEARCH = WEIGHTS / "research"  # of the second package
SHIPPED = [path for each in (WEIGHTS, RESEARCH) for path in sorted(each.glob("*.safetensors"))]
SHARED = ROOT.parent / "shared"  # not part of the repository: tests that need it skip without it
PACKS, REFS = SHARED / "packs", SHARED / "refs"
