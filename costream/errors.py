"""Exceptions that are shown to the user, and their exit codes."""

from __future__ import annotations

import re
from enum import IntEnum


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


class CostreamError(Exception):
    """Base of the errors that are explained to the user in one line.

    ``what`` says what is wrong, ``where`` names the file, option or URL, ``hint`` says what to
    do next. Credentials in any of them are hidden.
    """

    exit_code = ExitCode.BUG

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        line = what if where is None else f"{where}: {what}"
        if hint:
            line = f"{line}; {hint}"
        super().__init__(redact(" ".join(line.split())))


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


# user:password@ of a URL. The password may itself hold '@' and '/', so the user-info part runs
# to the last '@' that is still followed by something host-like before whitespace or a quote.
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"<>]*@(?=[^\s'\"<>@]*)")
_SECRET_QUERY = re.compile(
    r"(?P<key>[?&](?:[\w.-]*(?:pass(?:word|wd)?|pwd|token|secret|key|auth|signature|sig)"
    r"[\w.-]*)=)[^&\s'\"#]*",
    re.IGNORECASE,
)


def display_name(path: str) -> str:
    """Return a path or URL for display and output: UTF-8, without credentials."""
    return redact(path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def redact(text: str) -> str:
    """Return ``text`` with user names, passwords and secret query values of URLs replaced.

    ``rtsp://user:p@ss@host/x?token=1`` becomes ``rtsp://***@host/x?token=***``.
    """
    text = _USERINFO.sub(r"\g<scheme>***@", text)
    return _SECRET_QUERY.sub(r"\g<key>***", text)
