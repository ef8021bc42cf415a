"""Screen: only changed lines are written, and other output appears above them."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from costream.ui.screen import Screen

ERASE, UP = "\x1b[2K", "\x1b[1A"


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=40, height=20, color_system=None)


@pytest.fixture
def screen(console: Console) -> Iterator[Screen]:
    screen = Screen(console)
    screen.open()
    yield screen
    screen.close()


def written(console: Console) -> str:
    """Return what has been written since the last time."""
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    console.file.seek(0)
    console.file.truncate()
    return text


def lines(*texts: str) -> list[Text]:
    return [Text(text) for text in texts]


def test_only_lines_that_changed_are_written(console: Console, screen: Screen) -> None:
    screen.draw(lines("one", "two", "three"))
    assert written(console).endswith("one\ntwo\nthree")
    screen.draw(lines("one", "2", "three"))
    assert written(console) == f"\r{UP}{UP}\n2\x1b[0K\n"
    screen.draw(lines("one", "2", "three"))
    assert "e" not in written(console)
    screen.draw(lines("one", "two"))  # another number: all anew
    assert written(console) == f"\r{ERASE}{UP}{ERASE}{UP}{ERASE}one\ntwo"
    screen.close()
    assert written(console) == f"\r{ERASE}{UP}{ERASE}\x1b[?25h"


def test_a_change_of_style_alone_is_written(console: Console, screen: Screen) -> None:
    screen.draw([Text("one"), Text("two")])
    written(console)
    screen.draw([Text("one"), Text("two", "bold")])
    assert "two" in written(console)


def test_lines_that_a_narrower_terminal_wraps_are_erased_completely(
    console: Console, screen: Screen
) -> None:
    screen.draw(lines("x" * 35, "y" * 5))
    written(console)
    console.width = 10  # the first line takes four rows now
    screen.draw(lines("x" * 9, "y" * 5))
    assert written(console).count(ERASE) == 5


def test_lines_made_for_a_wider_terminal_are_erased_completely(
    console: Console, screen: Screen
) -> None:
    """It became narrower after they were made, before they were drawn."""
    console.width = 20
    screen.draw(lines("x" * 30, "two"))
    written(console)
    screen.draw(lines("y" * 19, "two"))
    assert written(console) == f"\r{ERASE}{UP}{ERASE}{UP}{ERASE}{'y' * 19}\ntwo"
    screen.draw(lines("z" * 19, "two"))
    assert written(console) == f"\r{UP}{'z' * 19}\x1b[0K\n"


def test_what_others_print_stands_above(console: Console, screen: Screen) -> None:
    screen.draw(lines("one", "two"))
    written(console)
    handler = RichHandler(console=console, show_time=False, show_path=False)
    handler.emit(logging.makeLogRecord({"msg": "a warning", "levelno": 30, "levelname": "W"}))
    text = written(console)
    assert text.startswith(f"\r{ERASE}{UP}{ERASE}")
    assert text.index("a warning") < text.index("one\ntwo")
    screen.draw(lines("one", "2"))
    assert written(console) == f"\r{UP}\n2\x1b[0K"
    screen.close()
    written(console)
    console.print("after")
    assert written(console) == "after\n"
