"""Views in real processes: escape sequences, screen content and cursor."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"
SHORT = ("--steps", "150", "--sleep", "0.004")
WATCH = ("watch", "--shows", "3")

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


def test_the_output_of_a_watch_is_left_alone(in_terminal: Terminal) -> None:
    shown = in_terminal("watch", "--shows", "20", "--sleep", "0.01", pipe=True)
    assert shown.stdout.split() == [str(k) for k in range(20)]
    assert shown.terminal.count(HIDE) == 1
    assert "\x1b[?1049h" not in shown.terminal


@pytest.mark.long
@pytest.mark.parametrize("pipe", [True, False])
@pytest.mark.parametrize("how", ["end", "raise", "exit", "sigint", "watch"])
def test_the_cursor_comes_back(in_terminal: Terminal, how: str, pipe: bool) -> None:
    args: dict[str, tuple[str, ...]] = {"end": SHORT, "watch": (*WATCH, "--die")}
    shown = in_terminal(*args.get(how, (*SHORT, "--die-at", "70", "--how", how)), pipe=pipe)
    assert HIDE in shown.terminal
    assert shown.terminal.rindex(SHOW) > shown.terminal.rindex(HIDE)
    assert (shown.code == 0) is (how == "end")


def test_the_end_is_a_readable_timeline(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT)
    after = shown.terminal[shown.terminal.rindex(SHOW) :]
    assert re.search(r"0:00\.10 +0:06\.10 +6\.00 s .*● .*walk +0\.8", after)
    assert re.search(r"15\.0 s of video in .* real time\)", after)
    assert "43x less" in after
    assert "background" not in after


def test_the_end_of_a_watch_is_a_table(in_terminal: Terminal) -> None:
    shown = in_terminal(*WATCH)
    assert shown.code == 0
    after = shown.terminal[shown.terminal.rindex(SHOW) :]
    assert "4 feeds watched for 01:02:03 with cooadtr" in after
    assert re.search(r"front door +14893 +\d+ +0 +0 +0 +3 +live", after)
    assert re.search(r"lab +14893 +\d+ +3 +0 +0 +0 +.*GIVEN-UP", after)
    assert "lab: given-up (wrong user name or password (401))" in after
    assert "59572 steps, 43x less computation than without continual inference" in after


@pytest.mark.parametrize(
    "env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}], ids=str
)
def test_no_escapes_where_they_are_not_wanted(in_terminal: Terminal, env: dict[str, str]) -> None:
    shown = in_terminal(*SHORT, "--plain-every", "0.1", **env)
    assert "\x1b" not in shown.terminal
    assert re.search(r"^t=\d+\.\d s  \d+(\.\d)?x  .* 0\.\d\d  dropped 0\r$", shown.terminal, re.M)
    assert "walk" in shown.terminal


def test_lines_are_wrapped_between_words_on_a_narrow_terminal(in_terminal: Terminal) -> None:
    lines = in_terminal(*SHORT, width=30, NO_COLOR="1").terminal.split("\r\n")
    assert max(map(len, lines)) <= 30
    assert re.search(r"15\.0 s of video in .+real time\)", " ".join(lines))


def test_plain_lines_of_a_watch(in_terminal: Terminal) -> None:
    shown = in_terminal("watch", "--shows", "9", "--every", "0.2", NO_COLOR="1")
    assert "\x1b" not in shown.terminal
    assert "lab: given-up (wrong user name or password (401))\r\n" in shown.terminal
    line = r"^up 01:02:0\d  feeds 2/4 live, 1 given-up, 1 waiting  lag "
    assert re.search(line, shown.terminal, re.M)


def test_no_live_view_under_ci(in_terminal: Terminal) -> None:
    shown = in_terminal(*SHORT, CI="true")
    assert HIDE not in shown.terminal
    assert "s of video" in shown.terminal


@pytest.mark.parametrize(
    ("args", "words"), [(SHORT, "####"), ((*WATCH, "--feeds", "40"), "... and 24 more, all live")]
)
def test_ascii_where_the_encoding_has_no_blocks(
    in_terminal: Terminal, args: tuple[str, ...], words: str
) -> None:
    shown = in_terminal(*args, pipe=True, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert words in shown.terminal
    assert shown.terminal.isascii()


def test_the_program_keeps_the_encoding_of_its_terminal(in_terminal: Terminal) -> None:
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PAGER": "cat"}
    shown = in_terminal("costream", "help", "formats", **plain)
    assert "## Formats" in shown.terminal
    assert shown.terminal.isascii()


def _is_complete(screen: list[str]) -> bool:
    return any("before" in line for line in screen) and any("MAC" in line for line in screen)


def test_the_screen_of_an_ordinary_terminal(tmux: Terminal) -> None:
    terminal = tmux(80, 24, "--steps", "600")
    screen = terminal.wait_for(_is_complete)
    text = "\n".join(screen)
    assert screen[0].startswith("walk in the room.mp4  cooadtr, 10 steps a second")
    assert re.search(r"━─+ +\d+ %  0:\d\d / 1:00  0:\d\d left", screen[1])
    assert " w  walk " in text
    for pattern in (
        r"^now +\w.*for \d+\.\d s, since 0:\d\d\.\d",
        r"^before +0:0\d\.\d – 0:\d\d\.\d +● \w+",
        r"^walk +█?",
        r"^speed +\d.*x real time, 2\.\d ms a step",
        r"^ +decode 0\.80  frontend 1\.20  network 0\.\d\d  sink 0\.10 ms",
        r"^cost +9\.6 M of 411 M MAC a step: 43x less",
        r"^lost +0 dropped, 0 errors",
    ):
        assert re.search(pattern, text, re.M), pattern
    assert not terminal.cursor()


@pytest.mark.parametrize("count", [1, 4, 16, 40])
def test_the_screen_of_a_watch(tmux: Terminal, count: int) -> None:
    terminal = tmux(80, 24, "watch", "--feeds", str(count))
    screen = terminal.wait_for(_shows_feeds)
    assert re.search(r"^ \d+/\d+ live.*up 01:0\d:\d\d", screen[0])
    row = r"^(?:[a-z 0-9…]+?) +(?:live|GIVEN-UP|waiting|stalled|connecting) "
    assert len(re.findall(row, "\n".join(screen), re.M)) == min(count, 16)
    assert max(map(len, screen)) < 80
    assert not terminal.cursor()


def _shows_feeds(screen: list[str]) -> bool:
    return any("steps/s" in line for line in screen)


def test_nothing_of_the_live_view_stays(tmux: Terminal) -> None:
    terminal = tmux(80, 24, *SHORT)
    terminal.wait_for(lambda _: terminal.ended())
    lines = [line for line in terminal.screen() if line.strip()]
    assert lines[0] == "walk in the room.mp4"
    assert lines[1].split() == ["start", "end", "length", "label", "score"]
    assert [line.split()[-2] for line in lines[2:5]] == ["walk", "down", "sit"]
    assert lines[5].startswith("15.0 s of video")
    assert terminal.cursor()


@pytest.mark.parametrize(("width", "height"), [(40, 10), (30, 6), (20, 3), (200, 50)])
def test_other_sizes(tmux: Terminal, width: int, height: int) -> None:
    terminal = tmux(width, height, "--steps", "600")
    screen = terminal.wait_for(lambda s: any("now" in x or "%" in x for x in s))
    assert screen[0].startswith("walk in the room.m")
    assert sum(line.startswith("walk in the room") for line in screen) == 1


def _bar(line: str, width: int) -> bool:
    return " %  " in line and " left" in line and len(line) == width - 1


def _lost_feed(line: str, width: int) -> bool:
    return line.startswith("lab ") and " GIVEN-UP " in line and len(line) <= width - 1


@pytest.mark.parametrize(
    ("args", "wide", "is_ready", "is_row", "head", "tail"),
    [
        (("--steps", "3000"), 100, _is_complete, _bar, "walk in the room.mp4", "cost"),
        (("watch", "--feeds", "4"), 130, _shows_feeds, _lost_feed, " 2/4 live", "3 alerts"),
    ],
    ids=["run", "watch"],
)
def test_resizing_leaves_nothing_behind(
    tmux: Terminal,
    args: tuple[str, ...],
    wide: int,
    is_ready: Callable[[list[str]], bool],
    is_row: Callable[[str, int], bool],
    head: str,
    tail: str,
) -> None:
    terminal = tmux(90, 40, *args)
    terminal.wait_for(is_ready)
    for width in (50, wide, 45, 80):
        terminal.resize(width, 36 if width == 45 else 40)
        screen = terminal.wait_for(lambda s, w=width: sum(is_row(x, w) for x in s) == 1)
        assert head in screen[0], "\n".join(screen)
        assert sum(tail in line for line in screen) == 1, "\n".join(screen)


@pytest.mark.parametrize(("width", "height", "rows"), [(80, 24, 6), (100, 40, 6), (40, 12, 6)])
def test_sound_on_a_real_screen(tmux: Terminal, width: int, height: int, rows: int) -> None:
    heads = ("--sound", "--heads", "--unknown", "--lag", "0.12")
    terminal = tmux(width, height, *heads, "--steps", "800", "--sleep", "0.02")
    screen = terminal.wait_for(lambda s: any(line.startswith("level    █") for line in s))
    screen = terminal.wait_for(
        lambda s: sum(line.startswith(("cotrans  ", "cosounds ")) for line in s) == rows
    )
    text = "\n".join(screen)
    assert re.search(r"^0:\d\d so far, 0\.12 s late", text, re.M)
    assert re.search(r"^level +█+━+│━+ +-\d\d dBFS", text, re.M)
    assert ("▀" in text) is (height >= 24)
    assert max(map(len, screen)) < width
