"""Alert actions: real programs, a real server on loopback, real files; and their workers."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from costream.core.errors import OutputError, UsageError
from costream.core.records import Alert, VideoFrame
from costream.runtime.alerts import actions
from costream.runtime.alerts.actions import AlertEvent, AppendLine, PostJson, RunCommand
from costream.runtime.alerts.notify import notifier
from costream.runtime.alerts.snapshots import AlertPicture, Scene
from costream.runtime.alerts.worker import ActionWorker
from kit.runs import wait_until

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX process groups")


def event(label="fall", clip=None, time_s=3.5):
    alert = Alert(time_s, "fall>=0.8", label, 0.91234, 1.25)
    return AlertEvent("cam1", "2026-03-01T12:00:00.000Z", alert, clip)


def content(path):
    """Wait until there is something in a file, and return it."""
    wait_until(lambda: path.exists() and path.read_text())
    return path.read_text()


def gone(pid):
    """Whether a process is over: a zombie, or not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def in_thread(action):
    """Start an action; return its thread, and the list of its failures."""
    failures = []

    def run():
        try:
            action.do(event())
        except OutputError as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failures


# --- run -----------------------------------------------------------------------------------------


@pytest.fixture
def echo(tmp_path):
    """Return a command that writes its arguments and environment to a file, as JSON."""
    program, out = tmp_path / "echo.py", tmp_path / "told.json"
    program.write_text(
        "import json, os, sys\n"
        "env = {k: v for k, v in os.environ.items() if k.startswith('COSTREAM_')}\n"
        f"part = {str(out)!r} + '.part'\n"
        "open(part, 'w').write(json.dumps([sys.argv[1:], env]))\n"
        f"os.replace(part, {str(out)!r})\n"
        "print('noise')\n"
    )
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}", out


@pytest.mark.parametrize(
    "label",
    [
        "fall",
        "-rf",
        "sit down",
        "$(touch pwned) `touch pwned`; touch pwned | & > pwned",
        'it\'s "quoted"\\',
        "two\nlines\ttab",
        "{time} {feed} %s",
        "落下 é",
        "*",
        "",
    ],
)
def test_any_label_is_one_argument(echo, tmp_path, monkeypatch, label, capfd):
    monkeypatch.chdir(tmp_path)
    command, out = echo
    RunCommand(f"{command} {{label}} 'in {{feed}}: {{label}}!' --x={{score}} ${{no}} $HOME").do(
        event(label)
    )
    arguments, environment = json.loads(content(out))
    assert arguments == [label, f"in cam1: {label}!", "--x=0.912", "${no}", "$HOME"]
    assert environment["COSTREAM_LABEL"] == label
    assert json.loads(environment["COSTREAM_ALERT"])["label"] == label
    assert not (tmp_path / "pwned").exists()
    assert capfd.readouterr() == ("", "")


def test_all_values_are_there_twice(echo, tmp_path, monkeypatch):
    command, out = echo
    monkeypatch.setenv("COSTREAM_SECRET", "hush")
    monkeypatch.setattr(actions, "SECRET_VARIABLES", {"COSTREAM_SECRET"})
    clip = tmp_path / "a clip.mkv"
    RunCommand(f"{command} {{feed}} {{label}} {{score}} {{time}} {{clip}} {{rule}}").do(
        event(clip=clip)
    )
    arguments, environment = json.loads(content(out))
    values = ["cam1", "fall", "0.912", "2026-03-01T12:00:00.000Z", str(clip), "fall>=0.8"]
    assert arguments == values
    names = ["FEED", "LABEL", "SCORE", "TIME", "CLIP", "RULE"]
    assert "COSTREAM_SECRET" not in environment
    assert [environment[f"COSTREAM_{name}"] for name in names] == values
    assert json.loads(environment["COSTREAM_ALERT"]) == {
        "feed": "cam1",
        "at": "2026-03-01T12:00:00.000Z",
        "type": "alert",
        "time_s": 3.5,
        "rule": "fall>=0.8",
        "label": "fall",
        "score": 0.91234,
        "since_s": 1.25,
        "clip": str(clip),
    }


def test_a_program_that_fails_or_cannot_be_started():
    with pytest.raises(OutputError, match="failed with exit code 3"):
        RunCommand(f"{sys.executable} -c 'import sys; sys.exit(3)'").do(event())
    with pytest.raises(OutputError, match="cannot be started"):
        RunCommand(f"{sys.executable} {{label}}").do(event("a\0b"))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "no program is named"),
        ("echo 'x", "cannot be split"),
        ("no-such-program-here {label}", "no such program"),
        ("echo {label} {nope}", r"no placeholder {nope}; known are {feed} .*: {nope }$"),
    ],
)
def test_commands_are_checked_at_the_start(command, message):
    with pytest.raises(UsageError, match=message):
        RunCommand(command)


CHILDREN = (
    "import os, subprocess, sys, time; "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']); "
    "open(sys.argv[1] + '.part', 'w').write(f'{os.getpid()} {child.pid} {os.getpgid(0)}'); "
    "os.replace(sys.argv[1] + '.part', sys.argv[1]); time.sleep(99)"
)


@posix
def test_what_takes_too_long_is_killed_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    action = RunCommand(f'{sys.executable} -c "{CHILDREN}" {pids}', timeout_s=5.0)
    with pytest.raises(OutputError, match="longer than 5 s"):
        action.do(event())
    pid, child, group = map(int, pids.read_text().split())
    assert pid == group != os.getpgid(0)
    assert gone(pid)
    wait_until(lambda: gone(child), timeout_s=10)


@posix
def test_cancel_kills_what_runs_and_starts_nothing_more(tmp_path):
    pids = tmp_path / "pids"
    action = RunCommand(f'{sys.executable} -c "{CHILDREN}" {pids}')
    thread, failures = in_thread(action)
    pid = int(content(pids).split()[0])
    action.cancel()
    thread.join(90)
    assert not thread.is_alive()
    assert gone(pid)
    assert failures == []
    with pytest.raises(OutputError, match="stopped"):
        action.do(event())


# --- post ----------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Answers with the codes it is told, one after the other; a code of 0 is no answer."""

    daemon_threads = True

    def __init__(self, codes, slow_s=0.0):
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes, self.slow_s = list(codes), slow_s
        self.requests = []
        self.asked = threading.Event()
        self.over = threading.Event()

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.shutdown()
        self.server_close()

    def url(self, login="", path="/hook/SECRET?x=1"):
        return f"http://{login}127.0.0.1:{self.server_port}{path}"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, dict(self.headers), json.loads(body)))
        self.server.asked.set()
        self.server.over.wait(self.server.slow_s)
        code = self.server.codes.pop(0)
        if code == 0:
            self.connection.close()
            return
        self.send_response(code)
        if code in (301, 302):
            self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


PAUSES_S = (0.01, 0.02)


def test_the_alert_is_posted_as_json():
    with Server([200]) as server:
        PostJson(server.url()).do(event("落下"))
    ((path, headers, body),) = server.requests
    assert path == "/hook/SECRET?x=1"
    assert headers["Content-Type"] == "application/json"
    assert "Authorization" not in headers
    assert (body["feed"], body["label"], body["time_s"]) == ("cam1", "落下", 3.5)


def test_frigate_gets_an_event_of_the_camera():
    """As its HTTP API is documented: POST /api/events/CAMERA/LABEL/create."""
    with Server([200, 500, 200]) as server:
        action = notifier(server.url("", "").replace("http://", "frigate://"))
        action.do(event("person / car"))
        action._pauses_s = PAUSES_S
        action.do(event())
    path, _, body = server.requests[0]
    assert path == "/api/events/cam1/person%20%2F%20car/create"
    assert body["duration"] > 0  # else it would never end
    assert (body["score"], body["sub_label"]) == (0.912, "fall>=0.8")
    assert len(server.requests) == 3
    assert action.name == f"Frigate at http://127.0.0.1:{server.server_port}"


def test_a_service_of_apprise_gets_the_picture_too():
    """Needs the extra notify."""
    pytest.importorskip("apprise")
    frame = VideoFrame(0, 0.0, 0, lambda: np.zeros((48, 64, 3), np.uint8))
    shown = replace(event("fall"), snapshot=AlertPicture(Scene(frame, (), ()), None))
    with Server([200, 200, 403]) as server:
        url = server.url("user:SECRET@", "/path").replace("http://", "json://")
        action = notifier(url)
        notifier(f"{url}?message=%7Blabel%7D+at+{{feed}}&method=POST").do(shown)
        action.do(event("fall"))
        with pytest.raises(OutputError) as error:
            action.do(event("fall"))
    (_, _, body), (_, _, plain), _ = server.requests
    assert body["title"].startswith("cam1: fall ")
    assert body["message"] == "fall at cam1"
    assert plain["message"].endswith(shown.alert.rule)
    with pytest.raises(UsageError, match="no placeholder"):
        notifier(f"{url}?message={{who}}")
    picture = base64.b64decode(body["attachments"][0]["base64"])
    assert picture[:2] == b"\xff\xd8"
    assert not plain["attachments"]
    for text in (str(error.value), action.name):
        assert "SECRET" not in text


@pytest.mark.parametrize("url", ["no-service://x", "nothing", "", "frigate://", "slack://x"])
def test_what_is_no_service_of_apprise_is_refused_without_its_url(url):
    """Needs the extra notify."""
    pytest.importorskip("apprise")
    with pytest.raises(UsageError) as error:
        notifier(url)
    assert not url or url not in str(error.value)


def test_credentials_go_as_basic_authentication_and_are_never_shown():
    with Server([403]) as server:
        action = PostJson(server.url("us%20er:p%40ss@"))
        with pytest.raises(OutputError) as error:
            action.do(event())
    headers = server.requests[0][1]
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"us er:p@ss"
    assert headers["Host"] == f"127.0.0.1:{server.server_port}"
    for text in (str(error.value), action.name):
        assert not any(word in text for word in ("p@ss", "p%40ss", "us er", "us%20er", "SECRET"))
    assert "answered 403" in str(error.value)


@pytest.mark.parametrize("first", [[500], [503, 500], [0], [0, 429]])
def test_what_may_pass_is_tried_again(first):
    with Server([*first, 204]) as server:
        PostJson(server.url(), pauses_s=PAUSES_S).do(event())
    assert len(server.requests) == len(first) + 1


def test_three_attempts_are_enough():
    with Server([500] * 9) as server, pytest.raises(OutputError, match="answered 500"):
        PostJson(server.url(), pauses_s=PAUSES_S).do(event())
    assert len(server.requests) == 3


@pytest.mark.parametrize("code", [301, 302, 400, 401, 404])
def test_what_will_not_pass_is_not_tried_again(code):
    with Server([code] * 9) as server, pytest.raises(OutputError, match=f"answered {code}"):
        PostJson(server.url(), pauses_s=PAUSES_S).do(event())
    assert len(server.requests) == 1


def test_a_server_that_refuses_connections():
    with Server([]) as server:
        url = server.url()
    with pytest.raises(OutputError, match=r"not delivered .*refused"):
        PostJson(url, pauses_s=PAUSES_S).do(event())


def test_a_server_that_does_not_answer():
    with Server([200] * 3, slow_s=60.0) as server:
        with pytest.raises(OutputError, match=r"not delivered .*timed out"):
            PostJson(server.url(), timeout_s=0.3, pauses_s=PAUSES_S).do(event())
        assert len(server.requests) == 3


@pytest.mark.parametrize(("code", "slow_s"), [(200, 60.0), (500, 0.0)])
def test_cancel_ends_waiting_for_an_answer_and_for_the_next_attempt(code, slow_s):
    with Server([code], slow_s=slow_s) as server:
        action = PostJson(server.url(), pauses_s=(60.0,))
        thread, failures = in_thread(action)
        assert server.asked.wait(90)
        action.cancel()
        thread.join(90)
        assert not thread.is_alive()
    assert len(failures) == 1


@pytest.mark.parametrize(
    "url",
    [
        *("", "u:pass@host/x", "ftp://u:pass@host/x", "http://", "http://u:pass/w@h"),
        *("http://[u:pass", "http://u:pass@host/a hook"),
    ],
)
def test_urls_are_checked_at_the_start_and_not_shown(url):
    with pytest.raises(UsageError, match=r"^not a URL") as error:
        PostJson(url)
    assert "pass" not in str(error.value)


# --- append --------------------------------------------------------------------------------------


def test_each_alert_is_a_line(tmp_path):
    path = tmp_path / "new" / "folder" / "alerts.jsonl"
    AppendLine(str(path)).do(event())
    AppendLine(str(path)).do(event("two\nlines 落下"))
    lines = path.read_text("utf-8").splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["fall", "two\nlines 落下"]


def test_a_line_that_does_not_fit_is_left_out(tmp_path, monkeypatch):
    path, write = tmp_path / "alerts.jsonl", os.write
    append = AppendLine(str(path))
    append.do(event("one"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, line: write(file, line[:9]))  # the disk is full
        with pytest.raises(OutputError, match="a line was left out"):
            append.do(event("lost"))
    append.do(event("two"))
    lines = path.read_text("utf-8").splitlines()
    assert [json.loads(line)["label"] for line in lines] == ["one", "two"]


def test_lines_of_several_writers_do_not_mix(tmp_path):
    path = tmp_path / "alerts.jsonl"

    def write(label):
        for _ in range(200):
            AppendLine(str(path)).do(event(label))

    threads = [threading.Thread(target=write, args=(c * 500,)) for c in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    labels = [json.loads(line)["label"] for line in path.read_text().splitlines()]
    assert sorted(labels) == sorted(c * 500 for c in "abcd" for _ in range(200))


def test_files_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match="not a file"):
        AppendLine(str(tmp_path))
    with pytest.raises(UsageError, match="not a file"):
        AppendLine("")
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "x", tmp_path / "file" / "new" / "x"):
        with pytest.raises(UsageError, match="is not a folder"):
            AppendLine(str(path))
    later = AppendLine(str(tmp_path / "new" / "x"))
    (tmp_path / "new").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        later.do(event())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk():
    with pytest.raises(OutputError, match="No space left"):
        AppendLine("/dev/full").do(event())


# --- workers -------------------------------------------------------------------------------------


class Gate:
    """An action that waits until it is let go, and may fail then."""

    name, wants_clip = "gate", False

    def __init__(self, problem=None):
        self.problem = problem
        self.began, self.go = threading.Event(), threading.Event()
        self.done = []

    def do(self, event):
        self.began.set()
        self.go.wait()
        self.done.append(event.alert.time_s)
        if self.problem:
            raise OutputError(self.problem, where=self.name)

    def cancel(self):
        self.go.set()


def end(worker, timeout_s=10.0):
    worker.finish()
    worker.close(time.monotonic() + timeout_s)


def test_events_are_done_in_their_order():
    action = Gate()
    worker = ActionWorker(action)
    for i in range(5):
        worker.put(event(time_s=float(i)))
    action.go.set()
    end(worker)
    assert action.done == [0, 1, 2, 3, 4]
    assert (worker.failed, worker.dropped) == (0, 0)


def test_the_oldest_that_wait_are_dropped_and_counted(caplog):
    action = Gate()
    worker = ActionWorker(action, queue=3)
    worker.put(event(time_s=0.0))
    assert action.began.wait(90)
    for i in range(1, 11):
        worker.put(event(time_s=float(i)))
    action.go.set()
    end(worker)
    assert action.done == [0, 8, 9, 10]
    assert worker.dropped == 7
    assert len(caplog.records) == 1
    assert "gate: too slow" in caplog.text


def test_failures_are_counted_and_reported_now_and_then(caplog):
    action = Gate("it broke")
    action.go.set()
    worker = ActionWorker(action, log_interval_s=1.5)
    for i in range(10):
        worker.put(event(time_s=float(i)))
    wait_until(lambda: worker.failed == 10)
    assert [r.getMessage() for r in caplog.records] == ["gate: it broke"]
    time.sleep(1.6)
    worker.put(event())
    end(worker)
    assert caplog.records[-1].getMessage() == "gate: it broke (and 9 more since the last message)"
    assert worker.failed == 11


def test_close_ends_what_hangs_and_drops_what_waits():
    before = set(threading.enumerate())
    action = Gate()
    worker = ActionWorker(action)
    for i in range(5):
        worker.put(event(time_s=float(i)))
    assert action.began.wait(90)
    end(worker, 0.2)
    assert action.done == [0]
    assert worker.dropped == 4
    assert set(threading.enumerate()) == before
    worker.put(event())
    assert worker.dropped == 5


def test_close_kills_a_program_that_runs(tmp_path):
    out = tmp_path / "out"
    code = f"import time; open({str(out)!r}, 'w').close(); time.sleep(99)"
    worker = ActionWorker(RunCommand(f'{sys.executable} -c "{code}"'))
    for i in range(3):
        worker.put(event(time_s=float(i)))
    wait_until(out.exists)
    began = time.monotonic()
    end(worker, 0.2)
    assert time.monotonic() - began < 30
    assert (worker.failed, worker.dropped) == (0, 2)


def test_a_worker_that_had_nothing_to_do_starts_no_thread():
    before = set(threading.enumerate())
    worker = ActionWorker(Gate())
    assert set(threading.enumerate()) == before
    end(worker)
