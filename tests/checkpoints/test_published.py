"""The table of published checkpoints says what whoever fetches one must know."""

from __future__ import annotations

from pathlib import Path

import tomllib

TABLE = Path(__file__).resolve().parents[2] / "weights" / "published.toml"
KEYS = {"url", "megabytes", "licence", "source", "import"}
DIGESTS = {"sha256_prefix", "md5_prefix"}


def test_every_entry_is_complete() -> None:
    entries = tomllib.loads(TABLE.read_text("utf-8"))
    assert {"vggish", "vggish-pca"} <= entries.keys()
    for name, entry in entries.items():
        digests = entry.keys() & DIGESTS
        assert entry.keys() - digests == KEYS, name
        assert len(digests) == (entry["licence"] != "NOASSERTION"), name
        assert entry["url"].startswith("https://")
        for digest in digests:
            assert int(entry[digest], 16) >= 0
            assert entry[digest] in entry["url"]
        assert entry["megabytes"] > 0
