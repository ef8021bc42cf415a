"""Exceptions that are shown to the user, and their exit codes."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from enum import IntEnum

from costream.core.urls import is_url, redact, redact_url


class ExitCode(IntEnum):
    """Exit codes of the program. Part of the public interface; see 'costream help exit-codes'."""

    OK = 0  # done (also when the reader of a pipe has left)
    BUG = 1  # a bug; -vv prints the traceback
    USAGE = 2  # the command line, a setting or an output path is wrong; nothing was run
    PARTIAL = 3  # some inputs failed or ended early, or results could not be written
    INPUT = 4  # no input can be opened or read; a feed was lost for good
    MODEL = 5  # model, weights or device cannot be used
    SIGINT = 130  # stopped by Ctrl-C (SIGINT), after the files were finished
    SIGTERM = 143  # stopped by SIGTERM, after the files were finished


_LONGEST = 2000  # characters of what is wrong, and of what to do
_LONGEST_NAME = 500
_LONGEST_MESSAGE = 4000
_LONG_QUOTE = re.compile(r"('[^']{200})[^']+(')")


class CostreamError(Exception):
    """Base of the errors that are explained to the user in one line.

    ``what`` says what is wrong, ``where`` names the file, option or URL, ``hint`` says what to
    do next. Each is as ``message`` makes it, and cut if it is long, as are long quotes in ``what``.
    """

    exit_code = ExitCode.BUG

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        # Hidden before cut: half a URL no longer shows where its password ends.
        line = _cut(_LONG_QUOTE.sub(r"\1…\2", redact(what)), _LONGEST)
        if where is not None:
            line = f"{_cut(display_name(str(where)), _LONGEST_NAME)}: {line}"
        if hint:
            line = f"{line}; {_cut(redact(hint), _LONGEST)}"
        super().__init__(message(line))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


class UsageError(CostreamError):
    """The command line, a setting or an output path is wrong; nothing has been run."""

    exit_code = ExitCode.USAGE


class SourceError(CostreamError):
    """An input cannot be opened, or a live source is lost for good."""

    exit_code = ExitCode.INPUT


class ModelError(CostreamError):
    """The model, its weights or the device cannot be used."""

    exit_code = ExitCode.MODEL


class OutputError(CostreamError):
    """A result cannot be written (disk full, permission lost) while an input is processed."""

    exit_code = ExitCode.PARTIAL


class WorkerError(CostreamError):
    """An error in a worker process, with the exit code that it has there."""

    def __init__(self, what: str, exit_code: ExitCode) -> None:
        super().__init__(what)
        self.exit_code = exit_code


def say(text: str) -> None:
    """Print a message on stderr; no message is worth a run, so failures are ignored."""
    with suppress(OSError, ValueError):  # ValueError: closed
        print(message(text), file=sys.stderr, flush=True)


def message(text: str) -> str:
    """Return ``text`` as all messages, on terminals and in logs, are: ``clean`` and redacted."""
    return _cut(clean(redact(text)), _LONGEST_MESSAGE)


def clean(text: str) -> str:
    """Return ``text`` on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def printable(text: str) -> str:
    """Return lines for stdout, redacted and without control characters."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in redact(text))


def display_name(path: str) -> str:
    """Return a path or URL for display and output: UTF-8, without credentials."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return redact_url(text) if is_url(text) else redact(text)


def reason_of(error: Exception, path: str) -> str:
    """Return the message of an error without the path or URL that it begins with."""
    return str(error).removeprefix(f"{display_name(path)}: ")
