"""Identity of a batch: all settings that change its results."""

from __future__ import annotations

import dataclasses
from typing import Any

from costream import __version__
from costream.models.identity import WeightsIdentity
from costream.records import SCHEMA, plain
from costream.runtime.batch.work import BatchJob

BATCH_SCHEMA = "costream-batch/1"

# Settings that change how a batch runs and what it prints, not its results. All others count,
# so that one added later is included by default.
_IRRELEVANT = {
    *("sources", "output", "formats", "weights", "threads", "overwrite", "skip_existing"),
    *("live", "color", "verbosity", "log_file"),
}


def identity(
    work: BatchJob, weights: WeightsIdentity, root: str, *, content: bool
) -> dict[str, Any]:
    """Return the identity that marks a folder of results.

    ``root``: the input folder that is mirrored; ``content``: fingerprints use content hashes.
    """
    told = dataclasses.asdict(work.detect)
    return {
        "schema": BATCH_SCHEMA,
        "records": SCHEMA,
        "version": __version__,
        "root": root,
        "weights_sha256": weights.weights_sha256,
        "card_sha256": weights.card_sha256,
        "formats": list(work.formats),
        "timings": work.timings,
        "hash": content,
        "options": {k: plain(v) for k, v in told.items() if k not in _IRRELEVANT},
    }


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return a short description of each difference, ``[]`` when there is none."""
    flat_old, flat_new = _flat(old), _flat(new)
    return [
        f"{key} {_short(flat_old.get(key))}, now {_short(flat_new.get(key))}"
        for key in dict.fromkeys([*flat_new, *flat_old])
        if flat_old.get(key) != flat_new.get(key)
    ]


def _flat(mark: dict[str, Any]) -> dict[str, Any]:
    options = mark.get("options")
    inner = options if isinstance(options, dict) else {}
    return {**{k: v for k, v in mark.items() if k != "options"}, **inner}


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str) and len(value) == 64:  # a checksum
        return value[:12]
    return "none" if value is None else str(value)
