"""What assistants may read and run: files below some folders, commands with limits.

Each call is a process of ``costream`` with a time limit, in an empty folder, that writes nothing.
Needs the extra ``mcp``.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.server.mcpserver.exceptions import ToolError

import costream
from costream.core.errors import printable

LONGEST = 4096  # characters of a path or a query
_WAITING = 8  # calls, beside the one that runs
_LINE_BYTES = 8_000_000
_REMARKS = 20  # lines of a process
_HEAD_BYTES = 4096
# Files that name other files or addresses: playlists of HLS, DASH and FFmpeg, SDP.
_REFERRING = re.compile(rb"#EXTM3U|ffconcat|<MPD|\A\s*v=0\s*[\r\n]|<ASX|<smil", re.IGNORECASE)


@dataclass(frozen=True)
class Limits:
    """Limits of a call."""

    time_s: float
    file_bytes: int
    most: int  # entries of an answer
    answer_bytes: int = 8_000_000  # of a process


class Roots:
    """The folders below which files are read."""

    def __init__(self, folders: Sequence[str], limits: Limits) -> None:
        self._folders = [os.path.realpath(folder) for folder in folders]
        self._limits = limits

    def find(self, path: str, *, folders: bool = False) -> str:
        """Return the real path of a file below a root; relative paths start at the first.

        ``folders``: a folder of files, without links, is found, too. Raises ToolError for others,
        for files that are too large, and for those that refer to other files.
        """
        real = self._below(path)
        mode = os.stat(real)
        if stat.S_ISDIR(mode.st_mode) and folders:
            with os.scandir(real) as entries:
                if any(entry.is_symlink() for entry in entries):
                    raise ToolError(f"{path!r} contains links, which are not followed")
            return real
        if not stat.S_ISREG(mode.st_mode):
            raise ToolError(f"{path!r} is not a file")
        if mode.st_size > self._limits.file_bytes:
            raise ToolError(
                f"{path!r} has {mode.st_size / 1e9:.1f} GB; at most"
                f" {self._limits.file_bytes / 1e9:g} GB are read"
            )
        with open(real, "rb") as file:
            if _REFERRING.search(file.read(_HEAD_BYTES)):
                raise ToolError(f"{path!r} is a playlist; name the recordings themselves")
        return real

    def _below(self, path: str) -> str:
        refusal = ToolError(
            f"{path[:200]!r} is not a file below the allowed folders: {', '.join(self._folders)}"
        )
        if not 0 < len(path) <= LONGEST or "\0" in path:
            raise refusal
        for folder in self._folders:
            try:
                real = os.path.realpath(os.path.join(folder, path), strict=True)
            except (OSError, ValueError):
                continue
            if real.startswith(folder.rstrip(os.sep) + os.sep) and os.access(real, os.R_OK):
                return real
        raise refusal


@dataclass(frozen=True)
class Answer:
    """What a process of costream printed."""

    code: int
    lines: list[bytes]
    remarks: list[str]

    def error(self) -> ToolError:
        """Return the error of a process that failed."""
        return ToolError("; ".join(self.remarks) or f"costream ended with exit code {self.code}")


class Commands:
    """Runs commands of costream, one after the other."""

    def __init__(self, folder: str, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        self._turn = anyio.Lock()
        self._waiting = 0

    async def run(self, *arguments: str, kinds: Sequence[str] = ()) -> Answer:
        """Return the answer of a command; of JSON lines, only records of these ``kinds``.

        Raises ToolError if it takes too long, prints too much, or too many calls are waiting.
        """
        if self._waiting > _WAITING:
            raise ToolError(f"busy: {_WAITING} calls are waiting; call again later")
        self._waiting += 1
        try:
            async with self._turn:
                with anyio.move_on_after(self._limits.time_s):
                    return await self._run(arguments, kinds)
        finally:
            self._waiting -= 1
        raise ToolError(
            f"it took longer than {self._limits.time_s:g} s; ask for a part of the recording with"
            " start_s and end_s"
        )

    async def _run(self, arguments: Sequence[str], kinds: Sequence[str]) -> Answer:
        package = str(Path(costream.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", "costream", *arguments]
        process = await anyio.open_process(
            command, stdin=DEVNULL, cwd=self._folder, env={**os.environ, "PYTHONPATH": paths}
        )
        try:
            return await _read(process, kinds, self._limits.answer_bytes)
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()


@asynccontextmanager
async def alongside(
    task: Callable[..., Coroutine[Any, Any, None]], *arguments: Any, ends: bool = False
) -> AsyncIterator[None]:
    """Run a task while the body runs; a ToolError of the body is raised as such, not in a group.

    ``ends``: the task ends by itself, and is awaited; otherwise it is cancelled after the body.
    """
    failed: ToolError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(task, *arguments)
        try:
            yield
        except ToolError as error:
            failed = error
        if failed is not None or not ends:
            tasks.cancel_scope.cancel()
    if failed is not None:
        raise failed


async def _read(process: Process, kinds: Sequence[str], most_bytes: int) -> Answer:
    assert process.stdout is not None
    assert process.stderr is not None
    lines: list[bytes] = []
    remarks: list[str] = []
    async with alongside(_read_remarks, process.stderr, remarks, ends=True):
        lines.extend([line async for line in _kept(process.stdout, kinds, most_bytes)])
    return Answer(await process.wait(), lines, remarks)


async def _kept(
    stream: ByteReceiveStream, kinds: Sequence[str], most_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the lines of these kinds, all without kinds. ToolError if they are too long in all."""
    starts = tuple(f'{{"type": "{kind}"'.encode() for kind in kinds)
    size = 0
    async for line in _lines(stream):
        if starts and not line.startswith(starts):
            continue
        size += len(line)
        if size > most_bytes:
            raise ToolError(f"the answer is longer than {most_bytes / 1e6:.1f} MB: ask for a part")
        yield line


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    """Yield lines; longer ones than _LINE_BYTES end the reading."""
    buffered = BufferedByteReceiveStream(stream)
    while True:
        try:
            yield await buffered.receive_until(b"\n", _LINE_BYTES)
        except anyio.IncompleteRead:
            if rest := buffered.buffer:
                yield rest
            return
        except anyio.DelimiterNotFound as error:
            raise ToolError("the answer has a line that is too long") from error


async def _read_remarks(stream: ByteReceiveStream, remarks: list[str]) -> None:
    with suppress(ToolError):  # a line that is too long
        async for line in _lines(stream):
            text = printable(line.decode("utf-8", "replace").strip()).removeprefix("costream: ")
            if text and len(remarks) < _REMARKS:
                remarks.append(text[:500])
