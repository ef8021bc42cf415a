"""Logging: to stderr through the console of the live view, and to a file if one is named."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from costream.core.errors import UsageError, message, printable
from costream.core.settings import ColorMode
from costream.ui.console import stderr_console

LOGGER = "costream"


class _ConsoleHandler(logging.Handler):
    """Prints through the live view's console, so that their outputs do not mix."""

    def __init__(self, color: ColorMode) -> None:
        super().__init__()
        self._console = stderr_console(color)

    def emit(self, record: logging.LogRecord) -> None:
        text = message(record.getMessage())
        style = {"ERROR": "red", "WARNING": "yellow"}.get(record.levelname, "")
        prefix = "" if record.levelno >= logging.ERROR else f"{record.levelname.lower()}: "
        self._console.print(f"costream: {prefix}{text}", style=style, soft_wrap=True)


class _LogFile(logging.FileHandler):
    """A log file; lines that cannot be written are left out, with one warning."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self._failed:
            self._failed = True
            error = sys.exc_info()[1]
            logging.getLogger(LOGGER).warning("%s: cannot write (%s)", self.baseFilename, error)

    def close(self) -> None:
        with suppress(OSError):  # closing flushes once more
            super().close()


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        return printable(line) if record.exc_info else message(line)


@contextmanager
def logging_to(
    verbosity: int, color: ColorMode, log_file: str | None, effective: Iterable[str] = ()
) -> Iterator[None]:
    """Send the package's log to stderr (and ``log_file``) while the block runs.

    ``verbosity``: -1: errors; 0: and warnings; 1: and settings; 2: everything. ``effective``: lines
    about the settings in force, logged first. Raises UsageError if the file cannot be opened.
    """
    logger = logging.getLogger(LOGGER)
    console = _ConsoleHandler(color)
    console.setLevel({-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(verbosity, 0))
    handlers: list[logging.Handler] = [console]
    if log_file is not None:
        try:
            to_file = _LogFile(log_file, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write the log ({error.strerror})", where=log_file) from error
        to_file.setFormatter(_Lines("%(asctime)s %(levelname)s %(message)s"))
        to_file.setLevel(logging.INFO if verbosity < 2 else logging.DEBUG)
        handlers.append(to_file)
    for handler in handlers:
        logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    for line in effective:
        logger.info("%s", line)
    try:
        yield
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
