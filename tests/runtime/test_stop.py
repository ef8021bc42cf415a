"""Stop signals: a run ends, loading exits at once, and handlers do not share a state."""

from __future__ import annotations

import signal

import pytest

from costream.core.errors import ExitCode
from costream.runtime.stop import StopHandler, Stopped, loading
from kit.program import python

LOADING = """
import os, signal, time
from costream.runtime.stop import StopHandler, loading
with StopHandler(), loading():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals of POSIX")
def test_a_signal_while_loading_exits_at_once() -> None:
    assert python("-c", LOADING).returncode == ExitCode.SIGTERM


def test_a_signal_without_a_run_raises_stopped() -> None:
    with pytest.raises(Stopped), StopHandler():
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_during_a_run_stops_its_source() -> None:
    stopped = []
    other = StopHandler()
    with StopHandler() as stop, stop.while_running(lambda: stopped.append(True)):
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        assert stop.exit_code is ExitCode.SIGINT
    assert stopped == [True]
    assert not other.requested


def test_loading_has_no_effect_where_the_program_handles_no_signals() -> None:
    before = signal.getsignal(signal.SIGINT)
    with loading():
        assert signal.getsignal(signal.SIGINT) is before
