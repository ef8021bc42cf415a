"""Damaged label files are reported as usage errors."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import UsageError
from costream.core.records import Segment
from costream.labels.reading import read_recordings
from costream.sinks.registry import FORMATS

TIMELINES = sorted(set(FORMATS) - {"coco", "joints", "lines", "mp4", "table"})
SPAN = {"start_time": {"rate": 4, "value": 1}, "duration": {"rate": 4, "value": 2}}
SETS = {
    "activitynet": {"database": {"v": {"subset": "a", "annotations": [{"segment": [1, 2]}]}}},
    "actions": {"v": {"subset": "a", "duration": 9.0, "actions": [[1, 2.0, 3.0]]}},
    "frames": {"fps": 4, "classes": ["a"], "videos": [{"video": "v", "labels": [0, 0]}]},
    "segments": {"fps": 4, "frames": 9, "segments": [{"label": "a", "start": 1, "end": 2}]},
    "tasks": [
        {
            "data": {"video": "/data/local-files/?d=v.mp4"},
            "predictions": [{"result": [{"value": {"start": 1, "end": 2, "labels": ["a"]}}]}],
        }
    ],
    "a.boris": {
        "behaviors_conf": {"0": {"code": "a", "type": "State event"}},
        "observations": {
            "o": {
                "file": {"1": ["v.mp4"]},
                "time offset": 1,
                "media_info": {"length": {"v.mp4": 9}},
                "events": [[1, "", "a", "", ""], [2, "", "a", "", ""]],
            }
        },
    },
    "a.otio": {
        "OTIO_SCHEMA": "Timeline.1",
        "tracks": {
            "children": [
                {
                    "name": "t",
                    "children": [
                        {
                            "OTIO_SCHEMA": "Clip.1",
                            "name": "a",
                            "media_reference": {"target_url": "v.mp4"},
                            "markers": [{"name": "b", "marked_range": SPAN}],
                            "source_range": SPAN,
                        }
                    ],
                }
            ]
        },
    },
}


def read_damaged(path: Path, data: bytes) -> int:
    """Read mutations of a file; give how many could be read."""
    rng = np.random.default_rng(7)
    count = 0
    for _ in range(80):
        damaged = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        if rng.random() < 0.3:
            damaged = damaged[: rng.integers(0, len(data))]
        path.write_bytes(damaged)
        count += is_read_or_refused(path)
    return count


def is_read_or_refused(path: Path) -> bool:
    """Read a file; any other exception than the one for users fails the test."""
    with suppress(UsageError):
        read_recordings(None, path)
        return True
    return False


@pytest.mark.parametrize("format", TIMELINES)
def test_timelines(format, written, tmp_path):
    written([format], tmp_path, "a.mp4", [Segment(k, k + 0.5, f"label {k}", 0.5) for k in range(3)])
    suffix = "timeline.csv" if format == "csv" else next(iter(FORMATS[format].files))
    path = tmp_path / f"a.mp4.{suffix}"
    assert read_damaged(path, path.read_bytes()) > 0


@pytest.mark.parametrize("name", sorted(SETS))
def test_sets(name, tmp_path):
    read_damaged(tmp_path / (name if "." in name else "a.json"), json.dumps(SETS[name]).encode())


@pytest.mark.parametrize("name", sorted(SETS))
def test_values_of_other_kinds(name, tmp_path):
    """Every value in a document in turn is something else."""
    path = tmp_path / (name if "." in name else "a.json")

    def variants(value):
        for other in (None, -1, "x", [], {}, [None], {"a": None}, True, 1e999):
            yield other
        if isinstance(value, dict):
            for key, inner in value.items():
                for other in variants(inner):
                    yield {**value, key: other}
                yield {k: v for k, v in value.items() if k != key}
        if isinstance(value, list):
            for k, inner in enumerate(value):
                for other in variants(inner):
                    yield [*value[:k], other, *value[k + 1 :]]

    for document in variants(SETS[name]):
        path.write_text(json.dumps(document), "utf-8")
        is_read_or_refused(path)


def test_arrays(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, labels=np.eye(3, dtype=int), rate_hz=4.0, names=["a", "b", "c"])
    read_damaged(path, path.read_bytes())
    np.save(tmp_path / "b.npy", np.eye(22))
    read_damaged(tmp_path / "b.npy", (tmp_path / "b.npy").read_bytes())
