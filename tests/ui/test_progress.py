"""Progress of a batch: bars on a terminal, plain lines elsewhere, estimates."""

from __future__ import annotations

import re
import time

import pytest

from costream.ui import progress as module
from costream.ui.progress import BatchProgress, BatchState
from kit.shown import console


@pytest.fixture
def state() -> BatchState:
    """Half of the bytes in ten seconds: two of eight files, and a part of a third."""
    sizes = {"files": 8, "size": 1000, "done_files": 2, "done_size": 500, "failed": 1}
    began_s = time.monotonic() - 10
    return BatchState(**sizes, media_s=300.0, began_s=began_s, running={"c.mp4": 20.0})


def test_figures(state):
    assert state.seen_s == 320.0
    assert state.eta_s() == pytest.approx(10, abs=0.5)
    assert state.total_media_s() == pytest.approx(600)
    line = state.line()
    assert re.match(r"2/8 files  5:20\.0 of media  3[0-2]x real time  ETA 0:1[01]", line)
    assert line.endswith("1 failed")


def test_before_anything_is_done_nothing_is_foretold():
    state = BatchState(files=3, size=10)
    assert state.eta_s() is None
    assert state.total_media_s() is None
    assert state.line() == "0/3 files  0 failed"


def test_plain_lines_come_seldom_and_the_last_always_unless_quiet(state, monkeypatch):
    out = console(100)
    shown = BatchProgress(out, state, live=False, quiet=False)
    shown.show()
    assert out.file.getvalue() == ""
    monkeypatch.setattr(module, "PLAIN_S", 0.0)
    shown.show()
    assert out.file.getvalue().startswith("2/8 files")
    shown.close("the end")
    assert out.file.getvalue().splitlines()[1:] == ["the end"]
    out = console(100)
    shown = BatchProgress(out, state, live=False, quiet=True)
    shown.show()
    shown.close("the end")
    assert out.file.getvalue() == ""


def test_bars_are_drawn_and_leave_nothing_but_the_last_line(state, monkeypatch):
    monkeypatch.setattr(module, "REFRESH_S", 0.0)
    out = console(100, force_terminal=True, color_system=None)
    shown = BatchProgress(out, state, live=True, quiet=False)
    shown.show()
    drawn = out.file.getvalue()
    assert "2/8, 1 failed" in drawn
    assert re.search("5:20, 3[0-2]x real time, ETA 0:1[01]", drawn)
    assert "\x1b[?25l" in drawn
    shown.close("the end")
    rest = out.file.getvalue()[len(drawn) :]
    assert "\x1b[?25h" in rest
    assert rest.endswith("the end\n")
