"""Logging to stderr through the shared console, and optionally to a file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from costream.errors import UsageError
from costream.redact import redact
from costream.ui.console import ColorMode, stderr_console

LOGGER = "costream"


class _ConsoleHandler(logging.Handler):
    """Prints through the live view's console, so that their outputs do not mix."""

    def __init__(self, color: ColorMode) -> None:
        super().__init__()
        self._console = stderr_console(color)

    def emit(self, record: logging.LogRecord) -> None:
        text = redact(record.getMessage())
        style = {"ERROR": "red", "WARNING": "yellow"}.get(record.levelname, "")
        prefix = "" if record.levelno >= logging.ERROR else f"{record.levelname.lower()}: "
        self._console.print(f"costream: {prefix}{text}", style=style, soft_wrap=True)


class _Redacting(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


@contextmanager
def logging_to(verbosity: int, color: ColorMode, log_file: str | None) -> Iterator[None]:
    """Send the package's log to stderr (and ``log_file``) while the block runs.

    ``verbosity``: -1 errors, 0 warnings too, 1 settings too, 2 everything. UsageError when the
    file cannot be opened.
    """
    logger = logging.getLogger(LOGGER)
    console = _ConsoleHandler(color)
    console.setLevel({-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, 0))
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        try:
            to_file = logging.FileHandler(log_file, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write the log ({error.strerror})", where=log_file) from error
        to_file.setFormatter(_Redacting("%(asctime)s %(levelname)s %(message)s"))
        to_file.setLevel(logging.INFO if verbosity < 2 else logging.DEBUG)
        handlers.append(to_file)
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
