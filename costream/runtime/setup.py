"""Logging to stderr through the shared console, and optionally to a file."""

from __future__ import annotations

import logging
import platform
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from costream.core.errors import UsageError, message, printable
from costream.core.settings import ColorMode
from costream.models.base import Model
from costream.options.options import Options
from costream.runtime.stop import loading
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
    """A log file; what cannot be written to it is left out, which is said once."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not self._failed:
            self._failed = True
            error = sys.exc_info()[1]
            logging.getLogger(LOGGER).warning("%s: cannot write (%s)", self.baseFilename, error)

    def close(self) -> None:
        with suppress(OSError):  # it flushes again
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

    ``verbosity``: -1 errors, 0 warnings too, 1 settings too, 2 everything. ``effective``: lines
    that say which settings are in force, logged first. UsageError when the file cannot be opened.
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


CPU_INFO = Path("/proc/cpuinfo")


def prepare_torch(threads: int | None = 1) -> None:
    """Set the number of threads (None: leave it), flush denormals to zero, and keep freed memory.

    A vector-matrix product ends before a second thread wakes up: two threads made a step up to
    45x slower on a busy machine. Denormal numbers make a product 10-170x slower and carry no
    information. Raises UsageError for what is no number of threads.
    """
    with loading():
        import numpy as np
        import torch

        from costream.nn.allocator import keep_freed_memory

    if threads is not None:
        try:
            torch.set_num_threads(threads)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UsageError(f"{threads!r} is not a number of threads", where="threads") from error
    for kind in (np.float32, np.float64):  # NumPy 1 warns of denormal numbers that are flushed
        np.finfo(kind)
    torch.set_flush_denormal(True)
    keep_freed_memory()


def load(options: Options) -> Model:
    """Set up torch, at most with the threads asked for, load the model. ModelError as there."""
    with loading():
        from costream.models.catalogue import load_model

        prepare_torch(options.threads)
        model = load_model(
            options.model,
            weights=options.weights,
            device=options.device,
            dtype=options.dtype or "float32",
        )
        if options.threads > 1:
            from costream.runtime.threads import set_threads

            set_threads(model, options.threads)
        if options.tokens is not None:
            from costream.runtime.threads import set_tokens

            set_tokens(model, options.tokens)
        return model


def processor() -> str:
    """Return the processor's model name, or its architecture where the system gives no name."""
    return _cpu_field("model name") or platform.processor() or platform.machine()


def has_fast_bfloat16() -> bool:
    """Return whether the processor multiplies bfloat16 faster than float32.

    True with AMX, on Arm with bf16, and on AMD with AVX-512 BF16 (from Zen 4 on, 2.2 times as
    fast); detected on Linux only. With AVX-512 BF16 alone, products take twice as long on a Xeon
    (PyTorch 2.13). Others emulate it, many times slower.
    """
    fast = {"amx_bf16", "bf16"}
    if _cpu_field("vendor_id") == "AuthenticAMD":
        fast.add("avx512_bf16")
    return not fast.isdisjoint(_cpu_field("flags|Features").split())


def _cpu_field(names: str) -> str:
    """Return the first value of a field of the processor's description, "" if there is none."""
    try:
        text = CPU_INFO.read_text()
    except OSError:  # not Linux
        return ""
    found = re.search(rf"^(?:{names})\s*:(.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""
