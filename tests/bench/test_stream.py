"""``costream bench stream``: a run compared with decoding alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kit.media import make_video
from kit.program import ROOT, costream

SAMPLE = ROOT / "samples" / "room.mp4"


def test_json_holds_a_row_for_every_way():
    done = costream("bench", "stream", SAMPLE, "--duration", 4, "--rounds", 1, "--json")
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(done.stdout)
    rows = {row["way"]: row for row in table["rows"]}
    assert list(rows) == ["decode", "decode + resize", "costream"]
    assert rows["decode + resize"]["x decode + resize"] == 1
    for row in rows.values():
        assert row["CPU s"] > 0
        assert row["x real time on one core"] == pytest.approx(4 / row["CPU s"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing.mp4", "no such file"), ("one.mp4", "too short"), ("rows.npy", "not a video")],
)
def test_what_cannot_be_measured_is_said(tmp_path, name, says):
    make_video(tmp_path / "one.mp4", frames=1)
    np.save(tmp_path / "rows.npy", np.zeros((4, 8), np.float32))
    done = costream("bench", "stream", tmp_path / name)
    assert done.returncode == 4
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
