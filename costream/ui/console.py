"""The rich consoles of the program, and the conditions for drawing a live view.

``--color never`` and NO_COLOR mean no escape sequence at all, so the live view, which needs
them to redraw, is replaced by plain lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TextIO

from rich.console import Console
from rich.text import Text

from costream.core.settings import ColorMode

PLAIN_S = 5.0  # interval of plain progress lines


def color_mode(flag: ColorMode = "auto", env: Mapping[str, str] | None = None) -> ColorMode:
    """Return the effective mode: ``--color``, else NO_COLOR, else FORCE_COLOR, else auto."""
    env = os.environ if env is None else env
    if flag != "auto":
        return flag
    if env.get("NO_COLOR"):
        return "never"
    return "always" if env.get("FORCE_COLOR") else "auto"


def stdout_console(flag: ColorMode = "auto") -> Console:
    """Return the console for human-readable results."""
    return _console(color_mode(flag), stderr=False)


def stderr_console(flag: ColorMode = "auto") -> Console:
    """Return the console for the live view, progress, warnings and errors."""
    return _console(color_mode(flag), stderr=True)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError again: ``main`` handles it, instead of rich."""
        raise


@cache
def _console(mode: ColorMode, *, stderr: bool) -> Console:
    # Labels and paths are data: nothing in them is markup, an emoji code or worth highlighting.
    # Some containers state a terminal of width 0, at which rich writes nothing at all.
    states = {"COLUMNS", "LINES"}
    env = {k: v for k, v in os.environ.items() if k not in states or v.strip("0")}
    return _Console(
        _environ=env,
        stderr=stderr,
        color_system=None if mode == "never" else "auto",
        force_terminal=True if mode == "always" else None,
        no_color=mode == "never",
        markup=False,
        emoji=False,
        highlight=False,
    )


def live_allowed(
    stderr: TextIO,
    *,
    quiet: bool = False,
    no_live: bool = False,
    flag: ColorMode = "auto",
    data_on_terminal: bool = False,
    env: Mapping[str, str] | None = None,
) -> bool:
    """Return whether a live view may be drawn on ``stderr``.

    Only on a terminal that can move its cursor, not under CI, where escape sequences are allowed
    and no records are written (``data_on_terminal``: ``-o -`` without a pipe). Cells of notebooks
    (``!costream ...``) look like terminals, but cannot move a cursor.
    """
    env = os.environ if env is None else env
    if env.get("JPY_PARENT_PID"):
        return False
    if quiet or no_live or data_on_terminal or color_mode(flag, env) == "never" or env.get("CI"):
        return False
    return _can_move(env) and stderr.isatty()


def print_line(console: Console, text: str, style: str = "") -> None:
    """Print a line, which is wrapped, between words, on a terminal only."""
    console.print(Text(text, style), soft_wrap=not console.file.isatty())


def is_unicode(console: Console) -> bool:
    """Return whether bars, blocks and dashes can be written; otherwise ASCII is used."""
    return console.encoding.lower().replace("_", "-").startswith("utf")


def restore_cursor(stderr: TextIO) -> None:
    """Show the cursor again, for an exit that runs no ``finally``; do nothing off a terminal.

    Safe in a signal handler: it bypasses Python's buffers, which may be in use.
    """
    if stderr.isatty() and _can_move(os.environ):
        with suppress(OSError):  # the terminal may be gone
            os.write(stderr.fileno(), b"\x1b[?25h\r\n")


def _can_move(env: Mapping[str, str]) -> bool:
    return os.name == "nt" or env.get("TERM", "") not in ("", "dumb", "unknown")
