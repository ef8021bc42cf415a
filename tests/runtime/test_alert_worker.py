"""Workers of alert actions: slow, failing and hanging actions block nothing."""

from __future__ import annotations

import sys
import threading
import time

from costream.errors import OutputError
from costream.records import Alert
from costream.runtime.alerts.actions import AlertEvent, RunCommand
from costream.runtime.alerts.worker import ActionWorker


def event(i=0):
    return AlertEvent("cam1", "2026-03-01T12:00:00.000Z", Alert(float(i), "fall", "fall", 0.9, 0.0))


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


def wait_until(true, timeout_s=30.0):
    until = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def end(worker, timeout_s=10.0):
    worker.finish()
    worker.close(time.monotonic() + timeout_s)


def test_events_are_done_in_their_order():
    action = Gate()
    worker = ActionWorker(action)
    for i in range(5):
        worker.put(event(i))
    action.go.set()
    end(worker)
    assert action.done == [0, 1, 2, 3, 4]
    assert (worker.failed, worker.dropped) == (0, 0)


def test_the_oldest_that_wait_are_dropped_and_counted(caplog):
    action = Gate()
    worker = ActionWorker(action, queue=3)
    worker.put(event(0))
    assert action.began.wait(30)
    for i in range(1, 11):
        worker.put(event(i))
    action.go.set()
    end(worker)
    assert action.done == [0, 8, 9, 10]
    assert worker.dropped == 7
    assert len(caplog.records) == 1
    assert "gate: too slow" in caplog.text


def test_failures_are_counted_and_told_now_and_then(caplog):
    action = Gate("it broke")
    action.go.set()
    worker = ActionWorker(action, log_interval_s=1.5)
    for i in range(10):
        worker.put(event(i))
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
        worker.put(event(i))
    assert action.began.wait(30)
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
        worker.put(event(i))
    wait_until(out.exists)
    began = time.monotonic()
    end(worker, 0.2)
    assert time.monotonic() - began < 30
    assert (worker.failed, worker.dropped) == (1, 2)


def test_a_worker_that_had_nothing_to_do_starts_no_thread():
    before = set(threading.enumerate())
    worker = ActionWorker(Gate())
    assert set(threading.enumerate()) == before
    end(worker)
