"""The table of published checkpoints says what whoever fetches one must know."""

from __future__ import annotations

from pathlib import Path

import tomllib

TABLE = Path(__file__).resolve().parents[2] / "weights" / "published.toml"
KEYS = {"url", "sha256_prefix", "megabytes", "licence", "source", "import"}


def test_every_entry_is_complete() -> None:
    entries = tomllib.loads(TABLE.read_text("utf-8"))
    assert {"vggish", "vggish-pca"} <= entries.keys()
    for name, entry in entries.items():
        assert entry.keys() == KEYS, name
        assert entry["url"].startswith("https://")
        assert int(entry["sha256_prefix"], 16) >= 0
        assert entry["sha256_prefix"] in entry["url"]
        assert entry["megabytes"] > 0
