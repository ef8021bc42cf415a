"""Server of the Model Context Protocol: the tools that an assistant can call.

Needs the extra ``mcp``.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from costream.cli.assistant_access import LONGEST, Answer, Commands, Limits, Roots, alongside
from costream.core.commit import code_version

_LABELS = 100  # at most, in a call
_STATUS_BYTES = 4 << 20  # of a status file
_REPORT_S = 5.0  # between reports of progress
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_@,-]{0,200}")  # names, no paths
_RECORDS = ("header", "segment", "gap", "summary")
_INSTRUCTIONS = (
    "costream recognises actions, objects and sounds in recordings on this machine. Call"
    " list_models for what each model recognises, describe_file for what a file contains, then"
    " detect or listen. Times are seconds from the start of the recording. Scores are from 0 to 1;"
    " predictions can be wrong."
)


def serve(folders: Sequence[str], limits: Limits) -> None:
    """Answer over standard input and output until one of them is closed."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            make_server(folders, limits, scratch).run()
        except Exception as error:
            if not _is_closed(error):
                raise


def make_server(folders: Sequence[str], limits: Limits, scratch: str) -> MCPServer[Any]:
    """Return a server of files below ``folders``; ``scratch``: an empty folder for processes."""
    server: MCPServer[Any] = MCPServer(
        "costream", instructions=_INSTRUCTIONS, version=code_version(), log_level="ERROR"
    )
    tools = Tools(Roots(folders, limits), Commands(scratch, limits), limits.most)
    for tool in (
        tools.list_models,
        tools.describe_file,
        tools.detect,
        tools.listen,
        tools.watch_status,
        tools.search_events,
    ):
        hints = ToolAnnotations(read_only_hint=True, open_world_hint=False)
        server.add_tool(tool, annotations=hints)
    return server


class Tools:
    """The tools; their docstrings and arguments are what an assistant sees."""

    def __init__(self, roots: Roots, commands: Commands, most: int) -> None:
        self._roots, self._commands, self._most = roots, commands, most

    async def list_models(self) -> dict[str, Any]:
        """List the models: name, summary, licence class, and whether their weights are here."""
        models = _content(await self._commands.run("models", "list", "--json"))
        shown = [
            {
                "name": model["name"],
                "summary": model["summary"],
                "licence": model["licence_class"],
                "installed": model["path"] is not None,
            }
            for model in models
        ]
        return {"models": shown[: self._most]}

    async def describe_file(self, path: str) -> dict[str, Any]:
        """Describe a recording, or a file of joints or labels: format, rate, length, contents.

        path: of a file below the allowed folders.
        """
        real = self._roots.find(path, folders=True)
        answer = await self._commands.run("doctor", "--json", real)
        reports = _content(answer, any_code=True)
        kept = [{k: v for k, v in r["rows"].items() if k != "next"} for r in reports]
        return {"recordings": kept[: self._most], "readable": answer.code == 0}

    async def detect(
        self,
        path: str,
        model: str = "auto",
        start_s: float | None = None,
        end_s: float | None = None,
        threshold: float | None = None,
        frames_per_second: float | None = None,
        labels: list[str] | None = None,
        context: Context | None = None,
    ) -> dict[str, Any]:
        """Detect actions or objects in a video, or actions in a file of joints; return segments.

        path: of a file below the allowed folders. model: a name of list_models. start_s, end_s:
        part of the recording. threshold: score from which a label counts. frames_per_second: of
        joints without times. labels: only these.
        """
        options = {"start": start_s, "end": end_s, "threshold": threshold, "fps": frames_per_second}
        arguments = self._arguments("detect", path, model, options, labels or [])
        return await self._analyse(arguments, context)

    async def listen(
        self,
        path: str,
        model: str = "mn04",
        start_s: float | None = None,
        end_s: float | None = None,
        threshold: float | None = None,
        labels: list[str] | None = None,
        context: Context | None = None,
    ) -> dict[str, Any]:
        """Recognise sounds in a recording or in the sound of a video; return segments.

        The arguments are those of detect.
        """
        options = {"start": start_s, "end": end_s, "threshold": threshold}
        arguments = self._arguments("listen", path, model, options, labels or [])
        return await self._analyse(arguments, context)

    async def watch_status(self, path: str) -> dict[str, Any]:
        """Return the state of the feeds of a running watch, from the file of its --status-file."""
        real = self._roots.find(path)
        status = None
        if os.path.getsize(real) <= _STATUS_BYTES:
            try:
                status = json.loads(Path(real).read_text("utf-8"))
            except (OSError, ValueError, RecursionError):
                status = None
        if not isinstance(status, dict) or not isinstance(status.get("feeds"), list):
            raise ToolError(f"{path!r} is not a status file: costream watch --status-file FILE")
        return {**status, "feeds": status["feeds"][: self._most]}

    async def search_events(
        self, path: str, query: str = "", since: str | None = None, until: str | None = None
    ) -> dict[str, Any]:
        """Find events that a watch has stored (costream watch --db FILE).

        path: of the store. query: words that must all occur; "..." is a phrase, or and not are
        understood. since, until: such as today, 2h, 22:00, 2026-11-28.
        """
        words = {"--since": since, "--until": until}
        if any(len(text) > LONGEST for text in (query, since or "", until or "")):
            raise ToolError("the query is too long")
        arguments = [f"{name}={text}" for name, text in words.items() if text]
        store = f"--db={self._roots.find(path)}"
        run = self._commands.run("search", store, "--json", *arguments, "--", query)
        events = _content(await run)
        return {"events": events[: self._most], "more": max(0, len(events) - self._most)}

    def _arguments(
        self,
        command: str,
        path: str,
        model: str,
        options: Mapping[str, float | None],
        labels: Sequence[str],
    ) -> list[str]:
        """Return the arguments of a run. Raises ToolError for values that are not allowed."""
        if not _MODEL.fullmatch(model):
            raise ToolError(f"{model[:200]!r} is not the name of a model: see list_models")
        if len(labels) > _LABELS or any(not 0 < len(label) <= LONGEST for label in labels):
            raise ToolError(f"labels: at most {_LABELS} texts")
        arguments = [command, self._roots.find(path, folders=True), f"--model={model}"]
        arguments += ["--quiet", "--output=-", "--format=jsonl", *_flags(options)]
        return [*arguments, *(f"--only={label}" for label in labels)]

    async def _analyse(self, arguments: Sequence[str], context: Context | None) -> dict[str, Any]:
        """Return the segments of a run, and what was said of it."""
        run = partial(self._commands.run, *arguments, kinds=_RECORDS)
        answer = await _reporting(run, context)
        found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _RECORDS}
        for record in map(json.loads, answer.lines):
            found[record.pop("type")].append(record)
        if not found["header"] or not found["summary"]:
            raise answer.error()
        segments = found["segment"]
        return {
            "model": found["header"][0]["model"],
            "segments": segments[: self._most],
            "more": max(0, len(segments) - self._most),
            "gaps": found["gap"][: self._most],
            "analysed_s": found["summary"][0]["media_s"],
            "complete": found["summary"][0]["complete"],
            "remarks": answer.remarks,
        }


async def _reporting(run: Callable[[], Awaitable[Answer]], context: Context | None) -> Answer:
    """Return the answer of a run; meanwhile report progress, so that clients keep waiting."""
    if context is None:
        return await run()
    async with alongside(_report, context):
        return await run()


async def _report(context: Context) -> None:
    begun_s = anyio.current_time()
    while True:
        await anyio.sleep(_REPORT_S)
        await context.report_progress(anyio.current_time() - begun_s, message="seconds so far")


def _is_closed(error: BaseException) -> bool:
    """Return whether this is, or consists of, errors of a closed pipe."""
    parts: Sequence[BaseException] = getattr(error, "exceptions", ())
    return all(map(_is_closed, parts)) if parts else isinstance(error, BrokenPipeError)


def _flags(options: Mapping[str, float | None]) -> list[str]:
    flags = []
    for name, value in options.items():
        if value is not None:
            if not 0 <= value < math.inf:
                raise ToolError(f"{name}: {value!r} is not a positive number")
            flags.append(f"--{name}={value!r}")
    return flags


def _content(answer: Answer, *, any_code: bool = False) -> Any:
    """Return the JSON that a command printed. Raises ToolError if it failed."""
    if not answer.lines or (answer.code and not any_code):
        raise answer.error()
    return json.loads(b"".join(answer.lines))
