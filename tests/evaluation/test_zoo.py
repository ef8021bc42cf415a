"""``costream bench zoo``: metrics and costs of all networks that fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from costream.evaluation.metric_charts import draw_table
from costream.models.catalogue import load_model
from kit.program import ROOT, costream
from kit.runs import run

SAMPLE, LABELS = ROOT / "samples" / "room.mp4", ROOT / "samples" / "room.json"
SMALL = ("--set", "embed_dim=16", "--set", "hidden=16", "--set", "num_classes=3")


def zoo(*arguments: object, cwd: Path) -> dict[str, Any]:
    done = run("bench", "zoo", *arguments, "--json", cwd=cwd)
    (table,) = json.loads(done.stdout)
    return {"notes": table["notes"], **{row["network"]: row for row in table["rows"]}}


@pytest.mark.long
def test_networks_for_video_together(tmp_path: Path) -> None:
    run(
        *("models", "init", "miniroad", *SMALL, "--frontend", "cooadtr", "-o", "x.safetensors"),
        cwd=tmp_path,
    )
    given = ("--labels", LABELS, "--weights", "x.safetensors", "--png", "zoo.png")
    rows = zoo(SAMPLE, *given, "--duration", 4, cwd=tmp_path)
    assert {"cooadtr", "cooadtr-b2", "oadtr", "eventful-vitdet", "x"} <= rows.keys()
    assert rows["cooadtr"]["weights"] == "research"
    assert 0.5 < rows["cooadtr"]["accuracy"] <= 1
    assert 0 < rows["cooadtr"]["mAP"] <= 1
    assert rows["x"]["weights"] == "given, random"
    assert rows["x"]["accuracy"] is rows["eventful-vitdet"]["accuracy"] is None
    model = load_model("cooadtr")
    assert rows["cooadtr"]["MMAC a step"] == pytest.approx(model.macs / 1e6)
    assert rows["cooadtr"]["MMAC a second"] == pytest.approx(8 * model.macs / 1e6)
    state = sum(t.numel() * t.element_size() for t in model.init_state().tensors().values())
    assert rows["cooadtr"]["state kB"] == pytest.approx(state / 1e3)
    assert all(row["ms a step"] > 0 for name, row in rows.items() if name != "notes")
    assert any(note.startswith("left out: cotrans") for note in rows["notes"])
    assert (tmp_path / "zoo.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_where_nothing_happens_there_is_not_a_precision(tmp_path: Path) -> None:
    labels = tmp_path / "room.csv"
    labels.write_text("start_s,end_s,label\n0,3,background\n", "utf-8")
    weights = ("--labels", labels, "--duration", 1)
    rows = zoo(SAMPLE, *weights, cwd=tmp_path)
    assert rows["cooadtr"]["mAP"] is None
    assert rows["cooadtr"]["accuracy"] == 1


@pytest.mark.long
def test_rows_of_features_fit_by_their_width(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).random((20, 128), np.float32))
    rows = zoo("rows.npy", cwd=tmp_path)
    assert rows.keys() == {"notes", "cotrans", "cosounds"}
    done = costream("bench", "zoo", "rows.npy", "--weights", "nowhere.safetensors", cwd=tmp_path)
    assert done.returncode == 5
    assert "there is no such weight file" in done.stderr
    np.save(tmp_path / "odd.npy", np.ones((4, 3), np.float32))
    done = costream("bench", "zoo", "odd.npy", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")
    assert "odd.npy: no available network fits this input" in done.stderr


@pytest.mark.long
def test_sound_has_its_own_networks(tmp_path: Path) -> None:
    street = ROOT / "samples" / "street.ogg"
    labels = ROOT / "samples" / "street.json"
    rows = zoo(street, "--labels", labels, "--duration", 6, cwd=tmp_path)
    assert {"cotrans", "cosounds"} <= rows.keys()
    assert rows["cosounds"]["accuracy"] > 0.5


def test_a_table_is_drawn_completely() -> None:
    import av

    from costream.core.tables import Table

    table = Table("title", ("a", "b"), (("long name", 1.5), ("x", None)), ("a note",))
    data = draw_table(table)
    decoder = av.CodecContext.create("png", "r")
    (picture,) = decoder.decode(av.Packet(data))
    rgb = torch.from_numpy(picture.to_ndarray(format="rgb24"))
    ink = (rgb < 140).all(-1)
    rows = [ink[24 * k + 34 : 24 * k + 52] for k in range(1, 4)]
    assert all(row.any() for row in rows)  # the names of the columns, and two rows
    ends = [int(row.any(0).nonzero().max()) for row in rows]
    assert max(ends) - min(ends) <= 3  # numbers are right-aligned
    assert ink[24 + 24 * 4 :].any()  # the note
    assert not ink[:20].any()
    assert not ink[:, -14:].any()
