"""``costream doctor`` on this machine."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from costream.__main__ import main
from costream.cli.doctor import EXTRAS
from costream.core.errors import ExitCode
from costream.core.formatting import counted
from costream.core.layouts import BODY_25
from kit.mocap_files import as_layout, standing
from kit.program import ROOT
from kit.rtsp_server import RtspServer, endless, needs_rtsp
from kit.skeleton_files import openpose

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_json_names_what_matters(capsys):
    assert main(["doctor", "--json"]) == 0
    findings = {f["name"]: f for f in json.loads(capsys.readouterr().out)}
    for name in (
        "costream",
        "python",
        "torch",
        "av",
        "librosa",
        "numba",
        "safetensors",
        "model cooadtr",
    ):
        assert findings[name]["ok"] is True, findings[name]
    for extra in ("mic", "flow", "torchaudio"):
        assert findings[extra]["ok"] in (True, None)
        if findings[extra]["ok"] is None:
            assert "pip install" in findings[extra]["hint"]


def test_the_text_lists_required_parts_and_missing_extras(capsys, monkeypatch):
    monkeypatch.setitem(EXTRAS, "gone", ("no-such-package", "no_such_module", "nothing"))
    assert main(["doctor"]) == 0
    there, optional = capsys.readouterr().out.split("\nOptional, and not here:\n")
    lines = there.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    assert any("torch " in line for line in lines)
    (processor,) = (line for line in lines if line.split()[1] == "cpu")
    assert processor.endswith(f", {counted(torch.get_num_threads(), 'torch thread')}")
    (models,) = (line for line in lines if line.split()[1] == "models")
    assert "cooadtr-b2, " in models
    assert "miniroad" not in there + optional
    assert "(not found)" not in there
    assert "pip install 'costream[gone]'" in optional


def test_extras_are_those_that_can_be_installed():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = declared["optional-dependencies"]
    for extra, (package, _, _) in EXTRAS.items():
        assert any(requirement.startswith(package) for requirement in extras[extra])


def test_files_and_what_they_are_taken_for(tmp_path, capsys):
    x = as_layout(standing(12, 2), BODY_25)
    openpose(tmp_path / "poses", x[..., :2])
    (tmp_path / "labels.txt").write_text("1.5\t2\twalk\n3\t5\tsit down\n6\t7\twalk\n")
    names = ("poses", "labels.txt", str(ROOT / "samples/street.ogg"), "gone.mp4")
    files = [str(tmp_path / name) for name in names]
    assert main(["doctor", *files]) == ExitCode.PARTIAL
    text = capsys.readouterr().out
    for line in (
        "taken for  joints of people (frame-folder)",
        "frames     12, 12 with somebody",
        "rate       not in the file: give it with --fps",
        "persons    2",
        "joints     25 of body-25, 2 coordinates: nose, neck, right shoulder (and 22 more)",
        f"next       costream detect {files[0]} -m costgcn-2d --fps N",
        "labels      3 of 2 kinds: walk, sit down",
        "times       0:01.5 to 0:07",
        "taken for  Ogg (",
        "not readable  no such file",
    ):
        assert line in text, line
    assert main(["doctor", "--json", "--fps", "24", files[0]]) == ExitCode.OK
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["rows"]["rate"], report["rows"]["length"]) == ("24 frames a second", "0.50 s")
    assert main(["doctor", files[3]]) == ExitCode.INPUT


def test_files_of_a_folder_are_reported_once_and_tables_both_ways(tmp_path, capsys):
    openpose(tmp_path / "some poses", as_layout(standing(3, 1), BODY_25)[..., :2])
    (tmp_path / "frames.csv").write_text("file,start_frame,end_frame,label\na.mp4,82,172,walk\n")
    files = sorted(map(str, (tmp_path / "some poses").iterdir()))
    assert len(files) == 3
    assert main(["doctor", *files, str(tmp_path / "frames.csv")]) == ExitCode.PARTIAL
    text = capsys.readouterr().out
    assert text.count("taken for") == 1
    assert f"next       costream detect '{tmp_path}/some poses' -m costgcn-2d --fps N" in text
    assert "not readable as labels  line 2: frames of an unknown rate; give it" in text
    assert "not readable as joints  there are no joints in its columns (file, start_frame" in text


def test_a_list_of_feeds_is_described(tmp_path, capsys):
    feeds = tmp_path / "feeds.toml"
    feeds.write_text(
        '[[feed]]\nurl = "rtsp://me:secret@door/live"\nname = "door"\non = ["person for 2s"]\n'
        'zone = ["mat=0,0 1,0 1,1"]\n\n[[feed]]\nurl = "hall.mp4"\n'
    )
    assert main(["doctor", str(feeds)]) == ExitCode.OK
    text = capsys.readouterr().out
    for line in ("taken for  list of feeds", "feeds      2: door (rtsp://", "hall.mp4 (hall.mp4)"):
        assert line in text
    assert "rules      person for 2s\n" in text
    assert "places     mat=0,0 1,0 1,1\n" in text
    assert f"next       costream watch {feeds}" in text
    assert "secret" not in text
    feeds.write_text('[[feed]]\nurk = "hall.mp4"\n')
    assert main(["doctor", str(feeds)]) == ExitCode.INPUT
    assert "feed 1: unknown setting 'urk'" in capsys.readouterr().out


def test_a_feed_that_is_not_there_is_told(capsys):
    assert main(["doctor", "--json", "rtsp://me:secret@127.0.0.1:9/live"]) == ExitCode.INPUT
    (report,) = json.loads(capsys.readouterr().out)
    assert "the connection was refused" in report["rows"]["not readable"]
    assert "secret" not in json.dumps(report)


@needs_rtsp
@pytest.mark.slow
def test_a_live_feed_is_connected(capsys):
    with RtspServer({"door": endless()}) as server:
        assert main(["doctor", server.url("door")]) == ExitCode.OK
    text = capsys.readouterr().out
    assert "taken for  live feed" in text
    assert "160x120 pixels" in text
