"""``costream watch``: servers that fail, signals, restarts."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import select
import shlex
import signal
import socket
import sys
import time
from datetime import datetime
from pathlib import Path

import av
import pytest

from kit.media import excerpt, side_by_side
from kit.paths import SAMPLES
from kit.program import COSTREAM, environment, on_terminal, start
from kit.rtsp_server import RtspServer, endless, needs_rtsp
from kit.runs import lines_in, records, refused, run, wait_until

ROOM = SAMPLES / "room.mp4"
SECRET = "p@ss:w/rd"
LONG_S = 90.0

WATCH = ("watch", "--write", "all")  # these tests look at each step


def of_type(lines: list[dict], kind: str) -> list[dict]:
    return [line for line in lines if line["type"] == kind]


def count(path: Path, kind: str) -> int:
    if not path.exists():
        return 0
    text = path.read_text("utf-8")
    return text.count(f'"type": "{kind}"')


def decodable(path: Path) -> int:
    """Return the number of frames of a clip; a packet cut off with its feed may be among them."""
    frames = 0
    with av.open(str(path)) as container:
        for packet in container.demux(video=0):
            with contextlib.suppress(av.InvalidDataError):
                frames += len(packet.decode())
    return frames


def stop(process, number: int = signal.SIGINT) -> tuple[int, float, str]:
    """Send a signal; give the exit code, how long it took, and what was said."""
    began_s = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    return process.returncode, time.monotonic() - began_s, said.decode()


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """Eight seconds of the sample from different places, in different sizes and rates."""
    folder = tmp_path_factory.mktemp("clips")
    excerpt(ROOM, folder / "a.mp4", 0, 8)
    excerpt(ROOM, folder / "b.mp4", 20, 8, rate=25, size=(160, 120))
    excerpt(ROOM, folder / "c.mp4", 33, 8, rate=10)
    return folder


@pytest.mark.long
def test_feeds_together_give_what_each_gives_alone(clips, tmp_path):
    """Different sizes and rates, so that every step has another set of feeds in it."""
    files = sorted(clips.iterdir())
    alone, together = tmp_path / "alone", tmp_path / "together"
    run("detect", "-m", "cooadtr", *files, "-o", alone, "--scores")
    run(
        *WATCH,
        "-m",
        "cooadtr",
        *files,
        "--realtime",
        "-o",
        together,
        "--scores",
        "--on-late",
        "block",
    )
    for file in files:
        a, b = records(alone / f"{file.name}.jsonl"), records(together / f"{file.name}.jsonl")
        assert of_type(b, "summary")[0]["dropped"] == 0
        assert [s["label"] for s in of_type(a, "segment")] == [
            s["label"] for s in of_type(b, "segment")
        ]
        a, b = of_type(a, "prediction"), of_type(b, "prediction")
        assert len(a) > 60
        assert [p["time_s"] for p in a] == [p["time_s"] for p in b]
        for one, other in zip(a, b, strict=True):
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "model", "files"),
    [
        ("listen", "cotrans,cosounds", ("street.ogg", "band.ogg")),
        ("detect", "costgcn", ("moves.csv",)),
    ],
)
def test_models_for_sound_and_skeletons_watch_too(command, model, files, tmp_path):
    paths = [SAMPLES / file for file in files]
    alone, together = tmp_path / "alone", tmp_path / "together"
    run(command, *paths, "-m", model, "-o", alone)
    played = ("--realtime", "--speed", "20", "--on-late", "block")
    run(*WATCH, *paths, "-m", model, "-o", together, *played)
    for path in paths:
        a, b = records(alone / f"{path.name}.jsonl"), records(together / f"{path.name}.jsonl")
        assert len(of_type(a, "segment")) >= 3
        segments = of_type(a, "segment")
        assert segments == [
            {**s, "score": pytest.approx(s["score"], abs=1e-4)} for s in of_type(b, "segment")
        ]


@pytest.mark.slow
def test_each_feed_of_a_list_has_its_own_video_stream(clips, tmp_path):
    both = side_by_side(tmp_path / "both.mkv", clips / "a.mp4", clips / "b.mp4")
    (tmp_path / "feeds.toml").write_text(
        f"stream = 2\n[[feed]]\nurl = '{both}'\nname = 'x'\n"
        f"[[feed]]\nurl = '{both}'\nname = 'y'\nstream = '640x480'\n"
    )
    run(
        *WATCH,
        "-m",
        "cooadtr",
        tmp_path / "feeds.toml",
        "--realtime",
        "--speed",
        "20",
        "-o",
        tmp_path,
    )
    for name, stream in (("x", "2"), ("y", "640x480")):
        (header,) = of_type(records(tmp_path / f"{name}.jsonl"), "header")
        assert header["options"]["stream"] == stream


@pytest.mark.long
def test_the_sound_of_a_pipe_is_ignored_with_a_warning(tmp_path):
    with ROOM.open("rb") as file:
        told = (*WATCH, "-", "-m", "cooadtr,cosounds", "-o", tmp_path)
        _, said = start(*told, stdin=file).communicate(timeout=LONG_S)
    assert b"stdin: no sound: the sound of a piped video is not read\n" in said
    (header,) = of_type(records(tmp_path / "stdin.jsonl"), "header")
    assert header["options"]["sound"] == "none (the sound of a piped video is not read)"


@pytest.mark.slow
def test_records_of_feeds_on_a_pipe_carry_their_names(clips):
    done = run(
        *WATCH, "-m", "cooadtr", clips / "a.mp4", clips / "c.mp4", "--realtime", "-q", "-o", "-"
    )
    lines = records(done.stdout)
    assert {line["feed"] for line in lines} == {"a.mp4", "c.mp4"}
    for name in ("a.mp4", "c.mp4"):
        own = [line["type"] for line in lines if line["feed"] == name]
        assert (own[0], own[-1]) == ("header", "summary")
    header = of_type(lines, "header")[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", header["began"])


@pytest.mark.long
def test_a_terminal_shows_what_lasts_to_the_end(clips, tmp_path):
    call = (
        *WATCH,
        "-m",
        "cooadtr",
        clips / "b.mp4",
        "--realtime",
        "--speed",
        "20",
        "--on-late",
        "block",
    )
    run(*call, "-o", tmp_path, "-q")
    (path,) = tmp_path.glob("*.jsonl")
    told = [(s["label"], s["end_s"]) for s in records(path, "segment")]
    terminal = environment({"TERM": "xterm-256color"})
    said, code = on_terminal([*COSTREAM, *map(str, call)], cwd=tmp_path, env=terminal)
    assert code == 0
    seen = said[said.rindex("label seen") :]
    assert told[-1][1] == max(end_s for _, end_s in told)
    assert f"0:{told[-1][1]:04.1f}" in seen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("uri", "model"), [("room.mp4", "cooadtr"), ("-", "cooadtr"), ("mic", "cosounds")]
)
def test_only_streams_and_cameras_have_clips(tmp_path, uri, model):
    options = ("-m", model, "--realtime", "-o", tmp_path / "log", "--on", "*>=0.8", "--clips", "1")
    source = SAMPLES / uri if uri == "room.mp4" else uri
    refused(2, "only streams and cameras have clips", *WATCH, source, *options)


@pytest.mark.long
def test_a_reader_that_has_left_ends_it_well(clips):
    process = start(*WATCH, "-m", "cooadtr", clips / "a.mp4", "--realtime", "-q", "-o", "-")
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(LONG_S) == 0
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.slow
@needs_rtsp
def test_changes_of_feeds_are_reported_and_the_others_continue(tmp_path):
    """One is killed and comes back, one has a wrong password, one does not exist."""
    out, status, told = tmp_path / "log", tmp_path / "status.json", tmp_path / "alerts"
    right, wrong = "u:p%40ss%3Aw%2Frd@", "u:wr%40ng@"
    (tmp_path / "feeds.toml").write_text(
        'on = ["lost"]\n'
        f'append = "{told}"\n'
        '[[feed]]\nname = "door"\nurl = "${DOOR}"\non = ["lost", "gap>=1s"]\nclips = "2,1"\n'
        '[[feed]]\nname = "safe"\nurl = "${SAFE}"\n'
        '[[feed]]\nname = "refused"\nurl = "${REFUSED}"\n'
        '[[feed]]\nname = "never"\nurl = "rtsp://127.0.0.1:1/never"\n'
    )
    files = {name: out / f"{name}.jsonl" for name in ("door", "safe", "refused", "never")}
    with (
        RtspServer({"door": endless()}) as door,
        RtspServer({"safe": endless()}, login=("u", SECRET)) as safe,
    ):
        urls = {"DOOR": door.url("door"), "SAFE": safe.url("safe", right)}
        process = start(
            *(
                *WATCH,
                "-m",
                "cooadtr",
                tmp_path / "feeds.toml",
                "-o",
                out,
                "--timeout",
                "20",
                "-vv",
            ),
            *("--status-file", status, "--log-file", tmp_path / "log.txt"),
            env=environment({**urls, "REFUSED": safe.url("safe", wrong)}),
        )
        wait_until(lambda: count(files["door"], "prediction") > 8)
        door.kill()
        killed_s = time.time()
        time.sleep(4)
        assert json.loads(status.read_text())["running"] is True
        door.start()
        back_s = time.time()
        wait_until(lambda: count(files["door"], "gap") == 1)
        known = count(files["door"], "prediction")
        wait_until(lambda: count(files["door"], "prediction") > known + 4)
        wait_until(lambda: count(files["safe"], "prediction") > 8)
        code, seconds, said = stop(process)
    assert code == 130
    assert seconds < 10
    lines = {name: records(file) for name, file in files.items()}
    for of_feed in lines.values():
        assert (of_feed[0]["type"], of_feed[-1]["type"]) == ("header", "summary")
    (gap,) = of_type(lines["door"], "gap")
    began_s = wall(lines["door"][0]["began"])
    assert began_s + gap["start_s"] == pytest.approx(killed_s, abs=1.0)
    assert back_s - 0.5 < began_s + gap["end_s"] < back_s + 15
    steps = of_type(lines["door"], "prediction")
    assert [p["time_s"] for p in steps] == sorted(p["time_s"] for p in steps)
    assert next(p["warmup"] for p in steps if p["time_s"] >= gap["end_s"])
    error, *others = of_type(lines["door"], "error")
    assert began_s + error["time_s"] == pytest.approx(killed_s, abs=1.0)
    # On a busy machine what was under way may be damaged too: that costs no more than itself.
    assert not any(other["fatal"] for other in others)
    assert of_type(lines["safe"], "gap") == []
    (never,) = of_type(lines["never"], "gap")
    assert never["start_s"] == 0.0
    assert "refused" in never["reason"]
    assert of_type(lines["refused"], "error")[0]["fatal"]
    assert lines["refused"][-1]["exit"] == 4
    assert lines["safe"][-1]["exit"] == 130
    assert json.loads(status.read_text())["running"] is False
    alerts = records(told)
    assert {(a["feed"], a["label"]) for a in alerts} >= {("door", "lost"), ("never", "lost")}
    clip = next(out / r["clip"] for r in of_type(lines["door"], "alert") if "clip" in r)
    assert decodable(clip) > 10  # of the seconds before it was lost
    everything = [said, *map(str, tmp_path.rglob("*"))]
    everything += [p.read_text("utf-8", "replace") for p in tmp_path.rglob("*") if p.is_file()]
    for text in everything:
        assert not re.search(r"p(@|%40)ss|wr(@|%40)ng", text)


def wall(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["loading", "connecting"])
def test_ctrl_c_ends_it_at_once(moment, tmp_path):
    """Also while a camera that takes connections does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"rtsp://127.0.0.1:{mute.getsockname()[1]}/x"
        process = start(*WATCH, "-m", "cooadtr", url, "-o", tmp_path, "--timeout", "60", "-v")
        if moment == "connecting":
            assert select.select([mute], [], [], 60)[0]
            time.sleep(0.5)
        else:
            assert b"info" in process.stderr.readline()  # settings; then the model is loaded
        code, seconds, said = stop(process)
    assert code == 130
    assert seconds < 10  # two seconds on a machine of its own
    if moment == "connecting":
        (file,) = tmp_path.glob("*.jsonl")
        assert [r["type"] for r in records(file)] == ["header", "gap", "summary"]
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_kill_loses_nothing_but_the_last_second(clips, tmp_path):
    process = start(
        *WATCH,
        "-m",
        "cooadtr",
        clips / "a.mp4",
        clips / "b.mp4",
        "--realtime",
        "-o",
        tmp_path,
        "-q",
    )
    a, b = tmp_path / "a.mp4.jsonl", tmp_path / "b.mp4.jsonl"
    wait_until(lambda: count(a, "prediction") > 20)
    process.kill()
    process.communicate(timeout=60)
    for path in (a, b):
        lines = records(path)
        assert of_type(lines, "compute")[-1]["time_s"] > 1.5
    run(*WATCH, "-m", "cooadtr", clips / "a.mp4", "--realtime", "-o", tmp_path, "-q")
    lines = records(a)
    assert [r["type"] for r in lines].count("header") == 2
    assert lines[-1]["type"] == "summary"
    assert lines[-1]["complete"]


@pytest.mark.long
def test_a_second_watch_is_refused_without_a_table_of_nothing(clips, tmp_path):
    told = (*WATCH, "-m", "cooadtr", clips / "a.mp4", "--realtime", "-o", tmp_path)
    process = start(*told, "-q")
    wait_until(lambda: count(tmp_path / "a.mp4.jsonl", "prediction") > 2)
    said = run(*told, code=2).stderr
    stop(process)
    assert "another run writes to it" in said
    assert "watched" not in said


@pytest.mark.slow
def test_a_restart_continues_where_it_was(clips, tmp_path):
    told = (
        *WATCH,
        "-m",
        "cooadtr",
        clips / "a.mp4",
        "--realtime",
        "-o",
        tmp_path,
        "-q",
        "--state-dir",
        tmp_path,
    )
    file = tmp_path / "a.mp4.jsonl"
    process = start(*told)
    wait_until(lambda: count(file, "prediction") > 20)
    assert stop(process, signal.SIGTERM)[0] == 143
    run(*told)
    lines = records(file)
    first, second = of_type(lines, "header")
    assert second["began"] == first["began"]
    predictions = of_type(lines, "prediction")
    assert [p["i"] for p in predictions] == list(range(len(predictions)))
    times = [p["time_s"] for p in predictions]
    assert times == sorted(times)
    (gap,) = of_type(lines, "gap")
    assert gap["reason"] == "not running"
    assert (gap["start_s"], gap["end_s"]) in itertools.pairwise(times)
    # What the network had seen is still known: the window of 64 went on to fill.
    assert next(p["i"] for p in predictions if not p["warmup"]) == 63


@pytest.mark.long
def test_a_crash_loop_continues_and_no_number_is_used_twice(clips, tmp_path):
    told = (
        *WATCH,
        "-m",
        "cooadtr",
        clips / "a.mp4",
        "--realtime",
        "-o",
        tmp_path,
        "-q",
        "--state-dir",
        tmp_path,
    )
    file = tmp_path / "a.mp4.jsonl"
    for _ in range(3):
        known, process = count(file, "prediction"), start(*told)
        wait_until(lambda known=known: count(file, "prediction") > known + 12, process)
        process.kill()
        process.communicate()
    lines = records(file)
    assert len({header["began"] for header in of_type(lines, "header")}) == 1
    steps = of_type(lines, "compute")
    for what in ("i", "time_s"):
        values = [step[what] for step in steps]
        assert all(a < b for a, b in itertools.pairwise(values)), values
    assert len(of_type(lines, "gap")) == 2


@pytest.mark.slow
@needs_rtsp
def test_clips_are_complete_and_in_time_after_a_restart(tmp_path):
    """Step times go on from an earlier watch, and so do those of the packets in clips."""
    file, started = tmp_path / "door.jsonl", tmp_path / "started"
    code = "import sys, time; print(sys.argv[2], time.time(), file=open(sys.argv[1], 'a'))"
    program = shlex.join([sys.executable, "-c", code, str(started), "{clip}"])
    rule = ("--on", "*>=0.001 for 2s", "--clips", "2,1", "--run", program)
    with RtspServer({"door": endless()}) as server:
        feeds = tmp_path / "feeds.toml"
        feeds.write_text(f'[[feed]]\nname = "door"\nurl = "{server.url("door")}"\n')
        for number in (1, 2, 3):
            told = (
                *WATCH,
                "-m",
                "cooadtr",
                feeds,
                "-o",
                tmp_path,
                "-q",
                *rule,
                "--state-dir",
                tmp_path / "state",
            )
            process = start(*told)
            wait_until(lambda n=number: lines_in(started) == n, process)
            assert stop(process)[0] == 130
    lines = records(file)
    began_s = wall(of_type(lines, "header")[0]["began"])
    alerts, programs = of_type(lines, "alert"), started.read_text().splitlines()
    assert len(alerts) == 3
    for alert, line in zip(alerts, programs, strict=True):
        path, started_s = line.split()
        assert path == str(tmp_path / alert["clip"])
        with av.open(path) as clip:
            assert clip.duration / av.time_base == pytest.approx(3.5, abs=0.7)  # a key a second
        # A second after the alert, and what a busy machine needs.
        assert float(started_s) - began_s - alert["time_s"] == pytest.approx(2.5, abs=2.0)
    assert alerts[1]["time_s"] > alerts[0]["time_s"] + 3


@pytest.mark.slow
def test_the_rules_in_help_and_errors_fit_the_default_model(clips, tmp_path):
    said = run("watch", "--help").stdout
    said += refused(2, "as in", *WATCH, "-m", "cooadtr", "rtsp://h/x", "--on", "walk>=2")
    said += refused(2, "as in", *WATCH, "-m", "cooadtr", "rtsp://h/x", "--run", "true")
    rules = {*re.findall(r"--on '([^']+)' --run", said), *re.findall(r"as in: ([^-(\n]+)", said)}
    rules |= {*re.findall(r"as in: --on '([^']+)'", said)}
    assert len(rules) >= 1
    rules = [word for rule in sorted(rules) for word in ("--on", rule.strip())]
    run(
        *WATCH,
        "-m",
        "cooadtr",
        clips / "a.mp4",
        "--realtime",
        "--speed",
        "20",
        *rules,
        "--run",
        "true",
        "-q",
        "-o",
        "-",
    )


@pytest.mark.slow
def test_a_feed_that_is_given_up_is_exit_code_4(clips, tmp_path):
    done = run(
        *(
            *WATCH,
            "-m",
            "cooadtr",
            clips / "a.mp4",
            "rtsp://127.0.0.1:1/x",
            "--realtime",
            "--reconnect",
            "1",
        ),
        *("-o", tmp_path),
        code=4,
    )
    assert done.stderr.count("refused") == 2  # when it is lost, and at the end
    assert of_type(records(tmp_path / "a.mp4.jsonl"), "summary")[0]["complete"]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["no-such-file.mp4", "--realtime"], 4, "no such file"),
        (["rtsp://h/x", "--on", "no such label>=0.5"], 2, "no such label"),
        (["rtsp://h/x", "--on", "walk>=2"], 2, "walk>=2"),
        (["rtsp://h/x", "--run", "true"], 2, "--on"),
        (["rtsp://h/x", "--clips", "--on", "walk"], 2, "-o"),
        (["rtsp://h/x", "--budget", "lots"], 2, "0.5x"),
        (["rtsp://h/x", "-m", "nonsense"], 5, "nonsense"),
        (["rtsp://u:secret@h/x", "--metrics", "nonsense"], 2, "--metrics"),
    ],
)
def test_mistakes_are_reported_in_one_line(args, code, words, tmp_path):
    assert "secret" not in refused(code, words, *WATCH, "-m", "cooadtr", *args, cwd=tmp_path)
