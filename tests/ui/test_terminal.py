"""Views in real processes: escape sequences, screen content and cursor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
SHORT = ("--steps", "150", "--sleep", "0.004")

Terminal = Callable[..., Any]


def test_redirected_output_keeps_every_line(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT, pipe=True)
    assert shown.code == 0
    records = [json.loads(line) for line in shown.stdout.split("\n")[:-1]]
    kinds = [record["type"] for record in records]
    assert (kinds[0], kinds[-1]) == ("header", "summary")
    assert kinds.count("prediction") == kinds.count("compute") == 150
    assert kinds.count("segment") == records[-1]["segments"] == 3
    assert "\x1b" not in shown.stdout
    assert "real time" in shown.terminal  # the live view was there meanwhile
    assert shown.terminal.count(HIDE) == 1


@pytest.mark.parametrize("pipe", [True, False])
@pytest.mark.parametrize("how", ["end", "raise", "exit", "sigint"])
def test_the_cursor_comes_back(in_terminal: Terminal, how: str, pipe: bool) -> None:
    last = () if how == "end" else ("--die-at", "70", "--how", how)
    shown = in_terminal(*SHORT, *last, pipe=pipe)
    assert HIDE in shown.terminal
    assert shown.terminal.rindex(SHOW) > shown.terminal.rindex(HIDE)
    assert (shown.code == 0) is (how == "end")


def test_the_end_is_a_readable_timeline(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT)
    after = shown.terminal[shown.terminal.rindex(SHOW) :]
    assert re.search(r"0:00\.10 +0:06\.10 +6\.00 s +walk +0\.8", after)
    assert re.search(
        r"150 steps, 15\.0 s of video in .* real time\), 1\.4 GMAC of 61\.6 GMAC", after
    )
    assert "43x less" in after
    assert "background" not in after


@pytest.mark.parametrize(
    "env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}], ids=str
)
def test_no_escapes_where_they_are_not_wanted(in_terminal: Terminal, env: dict[str, str]) -> None:
    shown = in_terminal(*SHORT, "--plain-every", "0.1", **env)
    assert "\x1b" not in shown.terminal
    assert re.search(r"^t=\d+\.\d s  \d+(\.\d)?x  .* 0\.\d\d  dropped 0\r$", shown.terminal, re.M)
    assert "walk" in shown.terminal


def test_no_live_view_under_ci(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT, CI="true")
    assert HIDE not in shown.terminal
    assert "150 steps" in shown.terminal


def test_ascii_where_the_encoding_has_no_blocks(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT, pipe=True, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "####" in shown.terminal
    assert shown.terminal.isascii()


def _is_complete(screen: list[str]) -> bool:
    return any("before" in line for line in screen) and any("MAC" in line for line in screen)


def test_the_screen_of_an_ordinary_terminal(tmux: Terminal) -> None:
    terminal = tmux(80, 24, "--steps", "600")
    screen = terminal.wait_for(_is_complete)
    text = "\n".join(screen)
    assert screen[0].startswith("walk in the room.mp4  cooadtr, 10 steps a second")
    assert re.search(r"━─+ +\d+ %  0:\d\d / 1:00  0:\d\d left", screen[1])
    assert re.search(r"^now +\w.*for \d+\.\d s, since 0:\d\d\.\d", text, re.M)
    assert re.search(r"^before +0:0\d\.\d – 0:\d\d\.\d +\w+", text, re.M)
    assert re.search(r"^walk +█?", text, re.M)
    assert " w  walk " in text
    assert re.search(r"^speed +\d.*x real time, 2\.\d ms a step", text, re.M)
    assert re.search(r"^ +decode 0\.80  frontend 1\.20  network 0\.\d\d  sink 0\.10 ms", text, re.M)
    assert re.search(r"^cost +9\.6 M of 411 M MAC a step: 43x less", text, re.M)
    assert re.search(r"^lost +0 dropped, 0 errors", text, re.M)
    assert not terminal.cursor()


def test_nothing_of_the_live_view_stays(tmux: Terminal) -> None:
    terminal = tmux(80, 24, *SHORT)
    screen = terminal.wait_for(lambda _: terminal.ended())
    lines = [line for line in screen if line.strip()]
    assert lines[0] == "walk in the room.mp4"
    assert lines[1].split() == ["start", "end", "length", "label", "score"]
    assert [line.split()[-2] for line in lines[2:5]] == ["walk", "down", "sit"]
    assert lines[5].startswith("150 steps, 15.0 s of video")
    assert terminal.cursor()


@pytest.mark.parametrize(("width", "height"), [(40, 10), (30, 6), (20, 3), (200, 50)])
def test_other_sizes(tmux: Terminal, width: int, height: int) -> None:
    terminal = tmux(width, height, "--steps", "600")
    screen = terminal.wait_for(lambda s: any("now" in x or "%" in x for x in s))
    assert screen[0].startswith("walk in the room.m")
    assert sum(line.startswith("walk in the room") for line in screen) == 1


def test_resizing_leaves_nothing_behind(tmux: Terminal) -> None:
    terminal = tmux(90, 40, "--steps", "3000")
    terminal.wait_for(_is_complete)
    for width, height in ((50, 40), (100, 40), (45, 36), (80, 40)):
        terminal.resize(width, height)

        def is_drawn_anew(screen: list[str], width: int = width) -> bool:
            bars = [line for line in screen if " %  " in line and " left" in line]
            return len(bars) == 1 and len(bars[0]) == width - 1

        screen = terminal.wait_for(is_drawn_anew)
        assert screen[0].startswith("walk in the room.mp4"), "\n".join(screen)
        assert sum(line.startswith("cost") for line in screen) == 1, "\n".join(screen)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 40), (40, 12)])
def test_sound_on_a_real_screen(tmux: Terminal, width: int, height: int) -> None:
    heads = ("--sound", "--heads", "--unknown", "--lag", "0.12")
    terminal = tmux(width, height, *heads, "--steps", "800", "--sleep", "0.02")
    screen = terminal.wait_for(lambda s: any(line.startswith("level    █") for line in s))
    screen = terminal.wait_for(
        lambda s: len([line for line in s if line.startswith(("cotrans  ", "cosounds "))]) == 2
    )
    text = "\n".join(screen)
    assert re.search(r"^0:\d\d so far, 0\.12 s late", text, re.M)
    assert re.search(r"^level +█+━+│━+ +-\d\d dBFS", text, re.M)
    assert ("▀" in text) is (height >= 24)
    assert max(map(len, screen)) < width
