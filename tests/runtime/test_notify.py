"""Notifications to systemd, through real sockets."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from costream.runtime.watch import systemd as module
from costream.runtime.watch.systemd import SystemdNotifier
from kit.watched import feed, watch

if not hasattr(socket, "AF_UNIX"):
    pytest.skip("needs Unix sockets", allow_module_level=True)

STATUS = watch(feed("door"), feed("lab", "lost", message="rtsp://admin:hunter2@lab: 401"))


class Systemd:
    """Listens as the service manager does."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(1 << 16).decode().split("\n"))
            except BlockingIOError:
                return messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Systemd, str]]:
    name = str(tmp_path / "notify")
    if request.param == "abstract":
        if not Path("/proc").exists():
            pytest.skip("abstract sockets are Linux only")
        name = f"@costream-{uuid.uuid4().hex}"
    listener = Systemd(name.replace("@", "\0", 1) if name.startswith("@") else name)
    yield listener, name
    listener.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as [seconds]."""
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


TOLD = "STATUS=up 01:02:03  feeds 1/2 live, 1 given-up  lag 0.12 s  dropped 0  alerts 0"


def test_ready_once_then_the_status_each_second_then_the_end(systemd, clock):
    listener, name = systemd
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name})
    assert listener.heard() == []
    for _ in range(9):
        notifier.show(STATUS)
        clock[0] += 0.25
    notifier.close()
    notifier.close()
    assert listener.heard() == [["READY=1", TOLD], [TOLD], [TOLD], ["STOPPING=1"]]


def test_the_watchdog_at_half_its_time(systemd, clock):
    listener, name = systemd
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "10000000"})
    beats = []
    for _ in range(80):  # 20 s
        notifier.show(STATUS)
        beats += [clock[0] - 1000.0 for message in listener.heard() if "WATCHDOG=1" in message]
        clock[0] += 0.25
    notifier.close()
    assert beats == [0.0, 5.0, 10.0, 15.0]


def test_nothing_is_heard_when_the_loop_stands_still(systemd, clock):
    listener, name = systemd
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"})
    notifier.show(STATUS)
    listener.heard()
    clock[0] += 60.0
    assert listener.heard() == []
    notifier.close()


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid() + 1)},
    ],
    ids=("none", "zero", "no number", "another process"),
)
def test_no_watchdog_that_is_not_for_this_process(systemd, env):
    listener, name = systemd
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, **env})
    notifier.show(STATUS)
    assert listener.heard() == [["READY=1", TOLD]]
    notifier.close()


def test_a_message_that_does_not_get_through_is_sent_again(tmp_path, caplog):
    name = str(tmp_path / "notify")
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3600000000"})
    with caplog.at_level(logging.WARNING, "costream"):
        notifier.show(STATUS)
        notifier.show(STATUS)
    assert len(caplog.records) == 1
    listener = Systemd(name)
    notifier.show(STATUS)
    assert listener.heard() == [["READY=1", "WATCHDOG=1", TOLD]]
    listener.close()
    notifier.close()


def test_a_full_queue_delays_nothing(tmp_path):
    name = str(tmp_path / "notify")
    listener = Systemd(name)
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1"})  # a message each time
    for _ in range(5000):  # far more than a socket holds
        notifier.show(STATUS)
    assert 0 < len(listener.heard()) < 5000
    listener.close()
    notifier.close()


@pytest.mark.parametrize("name", ["", "vsock:2:1234"])
def test_without_a_unix_socket_nothing_is_done(name):
    notifier = SystemdNotifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "1000000"})
    notifier.show(STATUS)
    notifier.close()
