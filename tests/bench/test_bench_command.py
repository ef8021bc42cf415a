"""``costream bench``: tables, JSON and usage errors."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from costream.bench.stream import stream_table
from costream.cli.bench import command
from costream.core import energy
from costream.core.errors import UsageError
from costream.core.tables import Table
from costream.models.catalogue import load_model
from costream.nn.block import EncoderConfig
from costream.nn.deepcot import DeepEncoder
from kit.media import make_video
from kit.paths import SAMPLES
from kit.program import ROOT, costream


@pytest.mark.long
def test_ops_prints_every_table() -> None:
    plain = json.loads(CliRunner().invoke(command, ["ops", "--json"]).stdout)
    assert plain[0]["rows"][0]["published"] == 2445.6
    skeletons, gates = (
        next(table["rows"] for table in plain if words in table["title"])
        for words in ("skeleton network", "ViTDet-B with token gates")
    )
    assert skeletons[3]["network"] == "CoST-GCN*"
    row = gates[0]
    assert row["eventful, recounted"] == row["eventful, published"] == 467.4


@pytest.mark.slow
def test_converted_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    from costream.bench import conversion

    wavenet = next(case for case in conversion.CASES if case.name.startswith("WaveNet"))
    case = wavenet._replace(shape=(1, 64, 20), small=(1, 64, 20))
    monkeypatch.setattr(conversion, "CASES", (case,))
    monkeypatch.setattr(conversion, "ROFORMER", EncoderConfig(16, 2, 32, 1, 9))
    options = ["convert", "--rounds", "1", "--json"]
    (table,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    assert table["rows"][0]["frames"] == 20
    assert float(table["rows"][0]["error"]) < 1e-9
    *_, ours, small = table["rows"]
    assert [(row["network"], row["frames"]) for row in (ours, small)] == [
        ("RoFormer", 9), ("RoFormer, int8", 9)]  # fmt: skip
    assert float(ours["error"]) < 1e-5
    assert float(small["error"]) < 0.1
    # Of one layer, the window recomputed is what its step gives.
    one = DeepEncoder(conversion.ROFORMER, rotary=True).eval()
    rows = torch.randn(2, 9, 16)
    torch.testing.assert_close(conversion.window_with_sdpa(one, rows), one(rows)[:, -1])


@pytest.mark.slow
def test_steps_of_one_encoder_as_text_or_json() -> None:
    options = ["steps", "-d", "16", "--heads", "2", "-n", "6", "-L", "2", "--rounds", "1"]
    text = CliRunner().invoke(command, options, catch_exceptions=False).stdout
    assert text.splitlines()[0] == "d=16 h=2 n=6 ff=16 L=2 gelu"
    options.append("--json")
    (table,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    assert table["title"] == "d=16 h=2 n=6 ff=16 L=2 gelu"
    assert table["rows"][0]["way"] == "costream"
    options += ["--streams", "3", "--dtype", "float64"]
    (table,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    assert float(table["rows"][0]["max error"]) < 1e-12
    assert "float64, 3 stream(s)" in table["notes"][0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-m", "cotrans", "--device", "cuda"], "cotrans is timed on a CPU, in float32"),
        (["-m", "vitdet", "--device", "mps"], "vitdet is timed on a CPU, in float32"),
        (["-m", "cox3d-s", "--streams", "2"], "--streams is for encoders, not for --model"),
    ],
)
def test_where_and_how_each_is_timed(options: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(command, ["steps", *options], catch_exceptions=False)


def test_a_width_that_heads_do_not_divide_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="change --heads"):
        CliRunner().invoke(command, ["steps", "-d", "10", "--heads", "4"], catch_exceptions=False)


def test_an_encoder_and_a_skeleton_network_at_once_are_a_usage_error() -> None:
    options = ["steps", "-d", "16", "-m", "costgcn-s1"]
    with pytest.raises(UsageError, match="-d and --model exclude each other"):
        CliRunner().invoke(command, options, catch_exceptions=False)


SAMPLE = ROOT / "samples" / "room.mp4"


@pytest.mark.long
def test_stream_has_a_row_for_every_way() -> None:
    done = costream("bench", "stream", SAMPLE, "--duration", 4, "--rounds", 1, "--json")
    assert done.returncode == 0, done.stderr
    table, python = json.loads(done.stdout)
    assert [row["way"] for row in python["rows"]] == ["run over the array", "stream.step(frame)"]
    assert all(row["ms a frame"] > 0 for row in python["rows"])
    rows = {row["way"]: row for row in table["rows"]}
    assert list(rows) == [
        "decode",
        "decode + resize",
        "costream",
        "costream --decoder fast",
    ]
    assert rows["decode + resize"]["CPU, x decode + resize"] == 1
    assert rows["decode + resize"]["wall, x decode + resize"] == 1
    for row in rows.values():
        assert row["CPU s"] > 0
        assert row["x real time on one core"] == pytest.approx(4 / row["CPU s"], rel=0.02)


@pytest.mark.parametrize("reported", [True, False])
def test_energy_of_runs_is_measured_or_why_not_is_said(
    reported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, over = tmp_path / "class/powercap/intel-rapl:0/energy_uj", threading.Event()
    if reported:
        counter.parent.mkdir(parents=True)
        for name, text in (("name", "package-0"), ("max_energy_range_uj", f"{10**12}")):
            counter.with_name(name).write_text(text)
        counter.write_text("0")
    monkeypatch.setattr(energy, "SYSFS", tmp_path)

    def use() -> None:
        for k in itertools.count():
            if reported:
                (tmp_path / "new").write_text(f"{k * 1_000_000}")
                (tmp_path / "new").replace(counter)
            if over.wait(0.002):
                return

    using = threading.Thread(target=use)
    using.start()
    try:
        clip = make_video(tmp_path / "clip.mp4", 25)
        table = stream_table(str(clip), load_model("encoder"), rounds=1)
    finally:
        over.set()
        using.join()
    joules = [row[-1] for row in table.rows]
    assert all(j is not None and float(str(j)) > 0 for j in joules) == reported
    assert (joules == [None] * len(joules)) != reported
    said = "package-0" if reported else "not measured, this machine does not report it"
    assert said in table.notes[-1]


@pytest.mark.parametrize("model", ["costgcn", "cosounds"])
def test_many_streams(model: str) -> None:
    options = [
        "streams",
        "-m",
        model,
        "--streams",
        "1",
        "--streams",
        "5",
        "--rounds",
        "2",
        "--json",
    ]
    (table,) = json.loads(CliRunner().invoke(command, options, catch_exceptions=False).stdout)
    assert [row["streams"] for row in table["rows"]] == [1, 5]
    assert table["rows"][0]["x one alone"] == 1
    for row in table["rows"]:
        assert row["ms a step"] * 1e3 == pytest.approx(
            row["us a stream"] * row["streams"], rel=0.02
        )
        assert row["in real time"] > 0
        assert row["KB a stream"] == table["rows"][0]["KB a stream"] > 0


def test_one_stream_of_a_detector() -> None:
    with pytest.raises(UsageError, match="no streams that step together"):
        CliRunner().invoke(command, ["streams", "-m", "eventful-vitdet"], catch_exceptions=False)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "says"),
    [("missing.mp4", "no such file"), ("one.mp4", "too short"), ("rows.npy", "not a video")],
)
def test_what_cannot_be_measured_is_reported(tmp_path: Path, name: str, says: str) -> None:
    make_video(tmp_path / "one.mp4", frames=1)
    np.save(tmp_path / "rows.npy", np.zeros((4, 8), np.float32))
    done = costream("bench", "stream", tmp_path / name)
    assert done.returncode == 4
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


TABLE = Table(
    "Speed",
    ("way", "us", "count"),
    (("one", 1234.5, 1_000_000), ("another", 0.00012, 7), ("absent", None, None)),
    ("A note.",),
)


def test_text_aligns_words_left_and_numbers_right() -> None:
    assert TABLE.to_text().splitlines() == [
        "Speed",
        "",
        "way            us      count",
        "-------  --------  ---------",
        "one       1,234.5  1,000,000",
        "another  1.20e-04          7",
        "absent          -          -",
        "",
        "A note.",
    ]


def test_json_has_a_row_as_an_object() -> None:
    plain = json.loads(json.dumps(TABLE.to_json()))
    assert plain["rows"][0] == {"way": "one", "us": 1234.5, "count": 1_000_000}
    assert plain["rows"][2]["us"] is None
    assert (plain["title"], plain["notes"]) == ("Speed", ["A note."])


def test_a_table_without_rows_still_has_its_columns() -> None:
    assert Table("Empty", ("a", "b"), ()).to_text().splitlines()[2] == "a  b"


def test_all_fractions_with_as_many_decimals_as_wanted() -> None:
    table = Table("T", ("a", "b", "c"), ((0.0004, 12, 12.5),), decimals=3)
    assert table.to_text().splitlines()[-1] == "0.000  12  12.500"


@pytest.mark.long
def test_a_film_is_watched_as_many_feeds() -> None:
    call = ["feeds", str(SAMPLES / "room.mp4"), "-m", "cooadtr", "--feeds", "3"]
    call += ["--processes", "2", "--duration", "2s", "--json"]
    (table,) = json.loads(CliRunner().invoke(command, call, catch_exceptions=False).stdout)
    (values,) = table["rows"]
    assert (values["feeds"], values["processes"]) == (3, 2)
    assert 0 < values["x real time"] < 1.5
    assert 0 < values["ms of processor a step"] < 500
