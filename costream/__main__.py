"""Entry point of the command line: signals, error messages and exit codes."""

# Only what a starting interpreter has loaded is imported here: see ``entry``.

from __future__ import annotations

import os
import sys

if __name__ == "__main__" or os.path.basename(sys.argv[0]).removesuffix(".exe") == "costream":
    # This is the program, and no import of it: Ctrl-C ends it without a traceback from here on,
    # also during the imports below. ``signal`` itself would first import others.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import errno
import io
import signal
import warnings
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import click

    from costream.core.errors import ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``costream`` with these arguments (default: the process's) and return the exit code.

    Errors are one line on stderr; a traceback is printed for bugs with ``-vv`` only.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    # Before NumPy is imported: its products are small, see ``models.blas``.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _replace_closed_streams()
    _protect_messages()
    _set_encodings()
    if argv is None and any("://" in each for each in args):
        from costream.core.arguments import hide_secrets

        hide_secrets()
    code = _run(args)
    _detach_closed_stdout()
    return code


def _set_encodings() -> None:
    """Write data as UTF-8, and on a terminal in its encoding."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace", newline="\n")


def _run(args: list[str]) -> int:
    """Run the command, report what stops it, and return the exit code."""
    import click

    from costream.core.errors import ExitCode
    from costream.runtime.stop import Stopped

    try:
        code = _call(args)
        sys.stdout.flush()
        return code
    except Stopped as stopped:
        return int(stopped.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return int(ExitCode.SIGINT)
    except BrokenPipeError:
        return int(ExitCode.OK)
    except Exception as error:
        return _report(error, args)


def _report(error: Exception, args: Sequence[str]) -> int:
    """Print the line of an error, and return its exit code."""
    import click

    from costream.core.errors import CostreamError, ExitCode

    if isinstance(error, click.ClickException):
        if type(error).__name__ == "NoArgsIsHelpError":  # click >= 8.2: its message is the help
            error.show()
            return int(ExitCode.USAGE)
        return _say(_usage_line(error), ExitCode.USAGE)
    if isinstance(error, CostreamError):
        return _say(str(error), error.exit_code)
    if isinstance(error, MemoryError):
        return _say("there is not enough memory", ExitCode.MODEL)
    if isinstance(error, ImportError):
        line = f"a library cannot be loaded ({error}); see: costream doctor"
        return _say(line, ExitCode.MODEL)
    if _verbosity(args) >= 2:
        import traceback

        from costream.core.errors import printable

        print(printable(traceback.format_exc()), file=sys.stderr, end="")
    return _say_other(error)


def _call(args: list[str]) -> int:
    instruction = os.environ.get("_COSTREAM_COMPLETE")
    if instruction:
        from costream.cli.completion import complete

        return complete(instruction)
    import click

    from costream.cli import cli
    from costream.core.errors import ExitCode, UsageError

    try:
        os.getcwd()  # libraries may end the process for the lack of one
    except OSError as error:
        what = f"the working directory is gone ({error.strerror})"
        raise UsageError(what, hint="change to another one") from error
    # Not cli.main(): it would turn a closed pipe into exit code 1 before we see it.
    try:
        with cli.make_context("costream", args or ["--help"]) as ctx:
            result = cli.invoke(ctx)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return int(result) if isinstance(result, int) else int(ExitCode.OK)


def _say(line: str, code: ExitCode) -> int:
    from costream.core.errors import say

    say(f"costream: {line}")
    return int(code)


def _say_other(error: Exception) -> int:
    from costream.core.errors import CostreamError, ExitCode

    # Refusals of the system that may come from anywhere; those of a full disk are from stdout.
    system = dict.fromkeys((errno.ENOSPC, errno.EFBIG, errno.EIO), ExitCode.PARTIAL)
    system |= {errno.EDQUOT: ExitCode.PARTIAL} if hasattr(errno, "EDQUOT") else {}
    system |= {errno.ENAMETOOLONG: ExitCode.USAGE, errno.EACCES: ExitCode.INPUT}
    if isinstance(error, OSError) and error.errno in system:
        where = "stdout" if error.filename is None else os.fspath(error.filename)
        return _say(str(CostreamError(str(error.strerror), where=where)), system[error.errno])
    if isinstance(error, UnicodeEncodeError) and error.encoding == sys.getfilesystemencoding():
        what = f"file names of this locale ({error.encoding}) cannot hold {error.object!r}"
        return _say(f"{what}; set LC_ALL=C.UTF-8", ExitCode.USAGE)
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return _say(f"internal error ({text}); -vv prints the traceback", ExitCode.BUG)


def _usage_line(error: click.ClickException) -> str:
    # click's list of booleans begins with an empty one.
    line = error.format_message().replace("Recognized values: , ", "Recognized values: ")
    ctx = getattr(error, "ctx", None)
    param = getattr(error, "param", None)
    if ctx is not None and param is not None and param.name:
        from click.core import ParameterSource

        origin = ctx.get_parameter_source(param.name)
        if origin is ParameterSource.ENVIRONMENT:
            line += f" (from the environment variable {param.envvar})"
        elif origin is ParameterSource.DEFAULT_MAP:
            line += " (from a configuration file)"
    if ctx is not None:
        line += f" (see '{ctx.command_path} --help')"
    return line


def _verbosity(args: Sequence[str]) -> int:
    short = sum(a.count("v") for a in args if a.startswith("-v") and set(a[1:]) == {"v"})
    return short + args.count("--verbose")


def _replace_closed_streams() -> None:
    """Discard output to streams that were closed at start (``>&-``)."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


class _Messages(io.FileIO):
    """Standard error: what cannot be written is left out, since no message is worth a run."""

    def write(self, data: Any, /) -> int:
        with suppress(OSError):
            if (n := super().write(data)) is not None:
                return n
        return memoryview(data).nbytes


def _protect_messages() -> None:
    own = sys.__stderr__
    if own is not None and sys.stderr is own:  # not one that a caller put there
        messages = _Messages(own.fileno(), "wb", closefd=False)
        sys.stderr = io.TextIOWrapper(io.BufferedWriter(messages), line_buffering=True)


def _detach_closed_stdout() -> None:
    """Prevent an error at interpreter exit if the reader of stdout has gone."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Run the command line and exit with its code.

    Until a command handles them, stop signals end it at once: an exception in the middle of an
    import would be a traceback, or the abort of an extension.
    """
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _leave)
    if getattr(sys, "frozen", False):  # a binary starts itself for a batch's workers
        import multiprocessing

        multiprocessing.freeze_support()
    warnings.showwarning = _note_warning
    code = main()
    threading = sys.modules.get("threading")
    names = [] if threading is None else [thread.name for thread in threading.enumerate()]
    if any(name == "sound" or name.startswith("feed ") for name in names):
        # The thread of a feed hangs in a library, as in the connection to a camera that does not
        # answer: it would use what libraries free at the end of a program, and crash.
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _note_warning(message: Any, category: Any, *about: Any, **more: Any) -> None:
    """Log what a library warns of; it is written for programmers."""
    if "logging" in sys.modules:
        text = "a library warns: %s: %s"
        sys.modules["logging"].getLogger("costream").debug(text, category.__name__, message)


def _leave(number: int, _frame: object) -> None:
    os._exit(130 if number == signal.SIGINT else 143)


if __name__ == "__main__":
    entry()
