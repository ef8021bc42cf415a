"""The program as a process: signals, closed pipes, redirections, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from kit.paths import SAMPLES
from kit.program import COSTREAM, environment, python, start
from kit.runs import lines_in, records, refused, run, wait_until

SAMPLE = SAMPLES / "room.mp4"
posix = pytest.mark.skipif(os.name != "posix", reason="POSIX signals")


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """Media bytes that go on for minutes: the sample's pictures as MPEG-TS, again and again."""
    import av

    path = tmp_path_factory.mktemp("endless") / "long.ts"
    with av.open(str(SAMPLE)) as given, av.open(str(path), "w", format="mpegts") as out:
        video = given.streams.video[0]
        copy = out.add_stream_from_template(video)
        packets = [p for p in given.demux(video) if p.dts is not None]
        step = packets[1].dts - packets[0].dts
        length = max(p.dts for p in packets) - packets[0].dts + step
        data = [(bytes(p), p.pts, p.dts, p.is_keyframe, p.time_base) for p in packets]
        for turn in range(40):
            for raw, pts, dts, key, base in data:
                packet = av.Packet(raw)
                packet.pts, packet.dts = pts + turn * length, dts + turn * length
                packet.time_base, packet.stream, packet.is_keyframe = base, copy, key
                out.mux(packet)
    return path


def test_jsonl_goes_to_a_pipe():
    lines = records(run("detect", "-m", "cooadtr", SAMPLE, "-f", "jsonl").stdout)
    assert (lines[0]["type"], lines[0]["schema"]) == ("header", "costream/1")
    assert (lines[-1]["type"], lines[-1]["complete"]) == ("summary", True)
    assert lines[-1]["steps"] == sum(r["type"] == "prediction" for r in lines)
    assert any(r["type"] == "segment" for r in lines)


@pytest.mark.long
def test_every_format_together(tmp_path):
    formats = ("-f", "jsonl,json,csv,srt", "-f", "vtt,audacity")
    assert run("detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, *formats).stdout == ""
    assert sorted(p.name.removeprefix("room.mp4.") for p in tmp_path.iterdir()) == [
        *("audacity.txt", "compute.csv", "json", "jsonl", "predictions.csv", "srt"),
        *("timeline.csv", "vtt"),
    ]
    document = json.loads((tmp_path / "room.mp4.json").read_text("utf-8"))
    segments = records(tmp_path / "room.mp4.jsonl", "segment")
    assert len(document["segments"]) == len(segments) > 3


@pytest.mark.slow
def test_existing_results_are_not_overwritten(tmp_path):
    run("detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, "--duration", "2")
    before = (tmp_path / "room.mp4.jsonl").read_bytes()
    again = run("detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, "--duration", "2", code=2)
    assert "--overwrite" in again.stderr
    skipped = run(
        "detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, "--duration", "2", "--skip-existing"
    )
    assert "skipped" in skipped.stderr
    assert (tmp_path / "room.mp4.jsonl").read_bytes() == before
    run("detect", "-m", "cooadtr", SAMPLE, "-o", tmp_path, "--duration", "3", "--overwrite")
    assert (tmp_path / "room.mp4.jsonl").read_bytes() != before


def test_scores_sum_to_one_over_every_class():
    header, *lines = records(
        run("detect", "-m", "cooadtr", SAMPLE, "--scores", "--duration", "3", "-f", "jsonl").stdout
    )
    labels = header["labels"]
    for r in lines:
        if r["type"] == "prediction":
            assert len(r["scores"]) == len(labels)
            assert sum(r["scores"]) == pytest.approx(1, abs=1e-4)
            best = max(range(len(labels)), key=r["scores"].__getitem__)
            assert r["top"][0][0] == labels[best]


@pytest.mark.long
def test_wait_leaves_out_the_warm_up():
    part = ("detect", "-m", "cooadtr", SAMPLE, "--duration", "15")
    shown = records(run(*part, "--wait", "-f", "jsonl").stdout, "prediction")
    everything = records(run(*part, "-f", "jsonl").stdout, "prediction")
    assert shown == [r for r in everything if not r["warmup"]]
    assert 0 < len(shown) < len(everything)


@posix
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_signals_finalise_files(tmp_path, endless, number, code):
    child = start("detect", "-m", "cooadtr", endless, "-o", tmp_path, "-f", "jsonl,json,csv,srt")
    wait_until(lambda: lines_in(tmp_path / "long.ts.jsonl.part") >= 20, child)
    child.send_signal(number)
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == code, stderr
    assert b"Traceback" not in stderr
    last = records(tmp_path / "long.ts.jsonl")[-1]
    assert (last["type"], last["complete"], last["exit"]) == ("summary", False, code)
    document = json.loads((tmp_path / "long.ts.json").read_text("utf-8"))
    assert document["summary"]["complete"] is False
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.long
@posix
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]
)
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.5])
def test_signals_from_the_first_moment_on_leave_silently(number, code, after_s):
    """The moment: when the interpreter has started, and a console script has been imported."""
    script = (
        "import signal, sys; from costream.__main__ import entry; sys.argv[1:] = ['detect', '-']\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # the tests may run under nohup
        "def told(what, about):\n"
        "    if what == 'import' and about[0] == 'click': print('importing', flush=True)\n"
        "sys.addaudithook(told)\n"
        "entry()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as child:
        assert child.stdout.readline() == b"importing\n"
        time.sleep(after_s)
        child.send_signal(number)
        assert child.stderr.read() == b""
    assert child.returncode == code


@pytest.mark.long
@posix
@pytest.mark.parametrize("after_ms", range(0, 300, 12))
def test_an_interrupt_while_python_starts_shows_nothing_of_the_program(after_ms):
    """What Python itself and a start script of pip say before the program begins is theirs."""
    child = start("doctor")
    time.sleep(after_ms / 1000)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=60)
    assert b"__main__.py" not in stderr
    assert child.returncode in (130, -signal.SIGINT, 1)


@pytest.mark.long
def test_warnings_of_libraries_are_shown_to_programmers_only(tmp_path):
    code = "import warnings; warnings.warn('of a library', UserWarning)\n"
    (tmp_path / "own.py").write_text(code)
    call = (
        "--code",
        "own.py",
        "detect",
        "-m",
        "cooadtr",
        SAMPLE,
        "--duration",
        "1",
        "-o",
        "out",
        "--overwrite",
    )
    child = start(*call, "-v", cwd=tmp_path)
    _, stderr = child.communicate(timeout=120)
    assert (child.returncode, b"of a library" in stderr) == (0, False)


@posix
@pytest.mark.long
def test_a_hundred_stops_while_libraries_and_the_model_load():
    random, codes = Random(1), {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
    for number in [*codes] * 33:
        child = start("detect", "-m", "cooadtr", "-", "-f", "jsonl", stdin=subprocess.PIPE)
        time.sleep(random.uniform(0.1, 4.0))
        child.send_signal(number)
        _, stderr = child.communicate(timeout=60)
        assert (child.returncode, stderr) == (codes[number], b"")


@posix
def test_interrupt_while_waiting_for_standard_input():
    child = start("detect", "-m", "cooadtr", "-", "-q", "-f", "jsonl", stdin=subprocess.PIPE)
    time.sleep(4)
    child.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, stderr = child.communicate(timeout=120)
    assert child.returncode == 130, stderr
    assert time.monotonic() - began < 10
    assert b"Traceback" not in stderr


@pytest.mark.long
@posix
def test_a_reader_that_leaves_ends_the_run_quietly(endless):
    child = start("detect", "-m", "cooadtr", endless, "-q", "-f", "jsonl")
    first = child.stdout.readline()
    assert json.loads(first)["type"] == "header"
    child.stdout.close()
    stderr = child.stderr.read()
    assert child.wait(timeout=120) == 0, stderr
    assert stderr == b""


def in_shell(options: str) -> subprocess.CompletedProcess[str]:
    line = f"{' '.join(COSTREAM)} detect {SAMPLE} --duration 1 {options}"
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=60, env=environment()
    )


@pytest.mark.long
@posix
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_were_closed_before(closed):
    done = in_shell(closed)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the place of the cache")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("batch", "-m", "cooadtr", "--dry-run", "-o", "out", SAMPLE), ""),
        (
            ("batch", "-m", "cooadtr", "--dry-run", "-o", "out", "-"),
            "costream: stdin: standard input is closed\n",
        ),
        (("models", "remove", "mine"), "mine.safetensors would be deleted; confirm with --yes\n"),
    ],
)
def test_standard_input_that_was_closed_before(command, said, tmp_path):
    cache = tmp_path / "costream" / "weights"
    cache.mkdir(parents=True)
    (cache / "mine.safetensors").touch()
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COSTREAM, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment({"XDG_CACHE_HOME": str(tmp_path)}),
        cwd=tmp_path,
    )
    assert done.stderr.endswith(said)
    assert done.stderr.count("\n") == (1 if said else 0)
    assert done.returncode == (2 if said else 0)


@pytest.mark.long
@posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
def test_a_full_disk_is_reported():
    done = in_shell("-q > /dev/full")
    assert done.returncode == 3
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
@posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_error_ends_no_run(unbuffered, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    assert in_shell(f"-o {tmp_path} 2> /dev/full").returncode == 0
    (path,) = tmp_path.iterdir()
    assert records(path)[-1]["complete"] is True


@pytest.mark.long
@posix
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full (Linux)")
def test_a_full_log_is_reported_once_and_ends_no_run(tmp_path):
    done = in_shell(f"-o {tmp_path} --log-file /dev/full")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("/dev/full: cannot write (") == 1
    assert done.stderr.splitlines()[-1].startswith("wrote ")


@pytest.mark.long
@posix
def test_a_reader_of_standard_error_that_leaves_ends_no_run(tmp_path):
    child = start("detect", "-m", "cooadtr", SAMPLE, "--duration", 1, "-o", tmp_path)
    child.stderr.close()
    assert child.wait(timeout=60) == 0
    (path,) = tmp_path.iterdir()
    assert records(path)[-1]["complete"] is True


@pytest.mark.slow
@posix
def test_kill_leaves_readable_lines(tmp_path, endless):
    child = start("detect", "-m", "cooadtr", endless, "-o", tmp_path)
    part = tmp_path / "long.ts.jsonl.part"
    wait_until(lambda: lines_in(part) >= 50, child)
    child.kill()
    child.communicate(timeout=120)
    complete = part.read_text("utf-8").rpartition("\n")[0]
    assert len(records(complete)) >= 50


@pytest.mark.long
def test_piped_video_equals_the_file(endless):
    with endless.open("rb") as media:
        piped = run("detect", "-m", "cooadtr", "-", "--duration", "20", "-f", "jsonl", stdin=media)
    direct = run("detect", "-m", "cooadtr", endless, "--duration", "20", "-f", "jsonl")
    for kind, fewest in (("prediction", 100), ("segment", 0)):
        a, b = records(piped.stdout, kind), records(direct.stdout, kind)
        assert len(a) > fewest
        assert a == b


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["detect", "-m", "cooadtr", "x.mp4", "--top-k", "0"], 2, "--top-k"),
        (["detect", "-m", "cooadtr", "x.mp4", "--threshold", "7"], 2, "--threshold"),
        (["detect", "-m", "cooadtr", "x.mp4", "--start", "later"], 2, "--start"),
        (["detect", "-m", "cooadtr", "x.mp4", "--start", "5", "--end", "4"], 2, "not after"),
        (["detect", "-m", "cooadtr", "x.mp4", "-f", "xyz"], 2, "xyz"),
        (["detect", "-m", "cooadtr", "x.mp4", "-f", "csv"], 2, "-o"),
        (["detect", "-m", "cooadtr", "x.mp4", "--overwrite", "--skip-existing"], 2, "exclude"),
        (["detect", "-m", "cooadtr", "x.mp4", "-c", "none.toml"], 2, "none.toml"),
        (["nonsense"], 2, "nonsense"),
        (["detect", "-m", "cooadtr", "no-such-file.mp4"], 4, "no-such-file.mp4"),
        (["detect", "-m", "cooadtr", "."], 4, "folder"),
        (["detect", "-m", "cooadtr", "rtsp://user:secret@127.0.0.1:1/x"], 2, "***@"),
        (["detect", SAMPLE, "-m", "coadtr"], 5, "cooadtr"),
        (
            ["detect", "-m", "cooadtr", SAMPLE, "--weights", "missing.safetensors"],
            5,
            "missing.safetensors",
        ),
        (["detect", "-m", "cooadtr", SAMPLE, "--device", "cuda:99"], 5, "cuda:99"),
        (["train", "cooadtr", "--data", ".", "--device", "cuda:99"], 5, "cuda:99"),
    ],
)
def test_bad_calls_get_one_line_and_their_code(tmp_path, args, code, says):
    assert "secret" not in refused(code, says, *args, cwd=tmp_path)


@pytest.mark.parametrize("command", ["detect", "batch"])
def test_a_call_without_arguments_gets_the_usage(command):
    done = run(command, code=2)
    assert "Usage" in done.stderr
    assert done.stdout == ""


def test_one_bad_input_among_good_ones_is_exit_3(tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"")
    done = run(
        "detect", "-m", "cooadtr", bad, SAMPLE, "--duration", "2", "-o", tmp_path / "out", code=3
    )
    assert "bad.mp4" in done.stderr
    assert (tmp_path / "out" / "room.mp4.jsonl").exists()


def test_same_name_twice_is_refused(tmp_path):
    (tmp_path / "a").mkdir()
    same = tmp_path / "a" / "room.mp4"
    same.write_bytes(SAMPLE.read_bytes())
    for other in (same, SAMPLE):
        refused(2, "same files", "detect", "-m", "cooadtr", SAMPLE, other, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names_are_unicode(tmp_path):
    path = tmp_path / "Küche – 厨房 #1.mp4"
    path.write_bytes(SAMPLE.read_bytes())
    run("detect", "-m", "cooadtr", path, "--duration", "2", "-o", tmp_path / "öut")
    result = tmp_path / "öut" / f"{path.name}.jsonl"
    assert records(result)[0]["source"] == str(path)


def test_settings_from_files_and_environment(tmp_path):
    text = "\ufeff[detect]\ntop-k = 2\nformat = 'jsonl'\n"
    (tmp_path / "costream.toml").write_text(text, "utf-8")
    call, given = (
        ("detect", "-m", "cooadtr", SAMPLE, "--duration", "1", "-v"),
        {"COSTREAM_TOP_K": "1"},
    )
    for env, count in ({}, 2), (given, 1):
        done = run(*call, cwd=tmp_path, env=env)
        assert {len(r["top"]) for r in records(done.stdout, "prediction")} == {count}
    assert "top_k = 1 (environment)" in done.stderr
    refused(
        2,
        "COSTREAM_TOP_K",
        "detect",
        "-m",
        "cooadtr",
        SAMPLE,
        cwd=tmp_path,
        env={"COSTREAM_TOP_K": "x"},
    )


def test_quiet_and_log_file(tmp_path):
    done = run(
        "detect",
        "-m",
        "cooadtr",
        SAMPLE,
        "--duration",
        "2",
        "-q",
        "--log-file",
        tmp_path / "log",
        "-f",
        "jsonl",
    )
    assert done.stderr == ""
    assert "weights" in (tmp_path / "log").read_text("utf-8")


def test_a_bug_is_one_line_and_a_traceback_only_with_vv(tmp_path):
    """Weights with a card that asks for what no frontend has: not a user's mistake."""
    script = (
        "import sys, costream.runtime.detect as d\n"
        "def broken(*_): raise RuntimeError('broken on purpose')\n"
        "d.load_checked = broken\n"
        "from costream.__main__ import main\n"
        f"sys.exit(main(['detect', {str(SAMPLE)!r}, *sys.argv[1:]]))\n"
    )
    for args, traceback in (([], False), (["-vv"], True)):
        done = python("-c", script, *args)
        assert done.returncode == 1
        assert "internal error (RuntimeError: broken on purpose)" in done.stderr
        assert ("Traceback" in done.stderr) is traceback
