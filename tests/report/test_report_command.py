"""``costream report``: output files, messages and exit codes."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from costream.__main__ import main
from costream.runtime.batch.job import RECORDS
from kit.pages import Page
from kit.program import ROOT, costream, python
from kit.runs import run

needs_matplotlib = pytest.mark.skipif(
    find_spec("matplotlib") is None, reason="no matplotlib; pip install 'costream[report]'"
)


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (["out/clip.mp4.jsonl"], ["out/clip.mp4.html"]),
        (["out"], ["out/report.html"]),
        (["out/clip.mp4.jsonl", "out/other.mp4.jsonl"], ["report.html"]),
        (["out", "-o", "new/x.html"], ["new/x.html"]),
        (["out", "-o", "page"], ["page"]),
        (["out", "-f", "HTML", "-o", "x.htm"], ["x.htm"]),
    ],
)
def test_the_page_goes_where_the_help_says(
    result, tmp_path, monkeypatch, capsys, arguments, written
):
    result()
    result("other.mp4")
    monkeypatch.chdir(tmp_path)
    before = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert main(["report", *arguments]) == 0
    after = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert sorted(p.relative_to(tmp_path).as_posix() for p in after - before) == written
    assert capsys.readouterr().out.split() == [w.replace("/", os.sep) for w in written]
    Page(tmp_path / written[0])


def test_a_batch_that_wrote_other_formats_has_a_report(result, tmp_path):
    kept = tmp_path / "out" / RECORDS
    kept.mkdir(parents=True)
    result().rename(kept / "clip.mp4.jsonl")
    assert main(["report", str(tmp_path / "out")]) == 0
    Page(tmp_path / "out" / "report.html")


def test_the_page_goes_to_stdout(result, tmp_path):
    path = result()
    done = run("report", path, "-o", "-")
    assert done.stdout.startswith("<!DOCTYPE html>")
    assert done.stderr == ""
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_nothing_is_overwritten_unless_asked(result, capsys):
    path = result()
    page = path.with_suffix(".html")
    page.write_text("mine")
    assert main(["report", str(path)]) == 2
    assert "clip.mp4.html: exists already; use --overwrite" in capsys.readouterr().err
    assert page.read_text() == "mine"
    assert main(["report", str(path), "--overwrite"]) == 0
    assert page.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert not list(path.parent.glob("*.part"))


def test_what_is_written_next_to_results_is_not_a_stranger(result, tmp_path, capsys):
    """Other formats of a run, the tables of a batch, and an earlier report."""
    result(formats="jsonl,json,csv,srt,vtt,audacity")
    out = tmp_path / "out"
    (out / "clip.mp4.jsonl.part").write_text("{")
    (out / "failures.csv").write_text("name,status,exit,reason\n")
    (out / "summary.json").write_text('{"schema": "costream-batch/1"}')
    (out / "clip.mp4.coco.json").write_text('{"images": []}')
    for _ in range(2):
        assert main(["report", str(out), "--overwrite"]) == 0
        assert capsys.readouterr().err == ""
        assert Page(out / "report.html").count("article") == 1


def test_other_files_are_named_in_one_line_each(result, tmp_path, capsys):
    result()
    (tmp_path / "out" / "package.json").write_text('{"name": "x"}')
    (tmp_path / "out" / ".hidden.json").write_text('{"name": "x"}')
    assert main(["report", str(tmp_path / "out")]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "package.json: not a result of costream" in err
    assert main(["report", str(tmp_path / "out"), "--overwrite", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_results_that_cannot_be_read_are_reported_and_in_the_report(result, tmp_path, capsys):
    result()
    (tmp_path / "out" / "empty.mp4.jsonl").write_bytes(b"")
    assert main(["report", str(tmp_path / "out")]) == 3
    assert "empty.mp4.jsonl: the file is empty" in capsys.readouterr().err
    page = Page(tmp_path / "out" / "report.html")
    assert "Without results" in page.text
    assert "the file is empty" in page.text


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda p: None, 4, "no such file or folder"),
        (lambda p: p.write_bytes(b""), 4, "the file is empty"),
        (lambda p: p.write_text("<html>"), 4, "not a result of costream"),
        (lambda p: p.mkdir(), 4, "no results in this folder"),
        (os.mkfifo, 4, "neither a file nor a folder"),
        (lambda p: p.write_text('{"type": "header", "schema": "costream/9"}\n'), 4, "costream/9"),
    ],
)
def test_what_is_not_a_result_is_one_line(tmp_path, capsys, make, code, said):
    path = tmp_path / "x.jsonl"
    make(path)
    assert main(["report", str(path)]) == code
    done = capsys.readouterr()
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Usage"),
        (["out", "-f", "pdf"], "there is no format 'pdf'"),
        (["out", "-f", "png", "-o", "-"], "takes only html"),
        (["out", "-o", "out"], "is a folder"),
        (["out", "-o", "page.pdf"], "must end in .html"),
        (["out", "--nonsense"], "--nonsense"),
    ],
)
def test_usage_is_checked_first(result, tmp_path, monkeypatch, capsys, arguments, said):
    result()
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    done = capsys.readouterr()
    assert said in done.err + done.out


def test_a_png_without_matplotlib_says_what_to_install(result, tmp_path):
    path = result()
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else find(name, *a)\n"
        "from costream.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    done = python("-c", code, "report", path, "-f", "html,png")
    assert done.returncode == 2
    assert "pip install 'costream[report]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not path.with_suffix(".html").exists(), "told before anything is written"


@needs_matplotlib
@pytest.mark.parametrize("what", ["clip.mp4.jsonl", "."])
def test_a_png_has_the_timeline_in_its_colours(result, tmp_path, what):
    import av

    result(seconds=60.0, gap=(20.0, 31.5), labels=("none", "$x_1$ <b>", "walk", "sit\ndown"))
    result("other.mp4")
    out = tmp_path / "new" / "x.png"
    assert main(["report", str(tmp_path / "out" / what), "-o", str(out)]) == 0
    assert [p.name for p in out.parent.iterdir()] == ["x.png"]
    with av.open(str(out)) as opened:
        rgb = next(opened.decode(video=0)).to_ndarray(format="rgb24")
    assert rgb.shape[1] == 1440
    for color in ((0x6C, 0x72, 0xDC), (0xFF, 0xA9, 0x4C), (0x0B, 0x73, 0x50)):
        assert (rgb == color).all(axis=-1).sum() > 100, color


@needs_matplotlib
def test_both_formats_stand_together(result):
    path = result()
    assert main(["report", str(path), "-f", "html,png"]) == 0
    names = sorted(p.name for p in path.parent.iterdir())
    assert names == ["clip.mp4.html", "clip.mp4.jsonl", "clip.mp4.png"]


def test_no_torch_is_loaded(result):
    path = result()
    code = (
        "import sys; from costream.__main__ import main; main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    assert python("-c", code, "report", path).returncode == 0
    assert python("-c", code, "report", "--diff", path, path).returncode == 0


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's /proc")
def test_memory_does_not_grow_with_the_file(result):
    code = (
        "import sys; from costream.__main__ import main\n"
        "assert main(sys.argv[1:]) == 0\n"
        "status = open('/proc/self/status').read()\n"
        "print(status.split('VmHWM:')[1].split()[0], file=sys.stderr)"
    )
    used = []
    for seconds in (60.0, 3600.0):
        path = result(f"{seconds}.mp4", seconds=seconds, segment_s=(60.0, 90.0))
        done = python("-c", code, "report", path, cwd=ROOT)
        used.append(int(done.stderr.split()[-1]) // 1024)
    assert path.stat().st_size > 8_000_000
    assert used[1] - used[0] < 12, used


def test_what_detect_writes_is_shown(tmp_path):
    sample = ROOT / "samples" / "room.mp4"
    run("detect", "-m", "cooadtr", sample, "-o", tmp_path)
    done = costream("report", tmp_path / "room.mp4.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    page = Page(tmp_path / "room.mp4.html")
    assert page.count("img") > 5
    assert {"walk", "lie", "fall"} <= set(page.words)
