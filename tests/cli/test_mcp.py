"""``costream mcp``: tools for assistants, called with the client of the protocol."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from costream.__main__ import main
from kit.paths import ROOT
from kit.program import environment

pytest.importorskip("mcp", reason="needs the extra 'mcp'")

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from costream.cli.assistant_access import Limits
from costream.cli.assistant_server import make_server

LIMITS = Limits(time_s=120.0, file_bytes=1 << 22, most=5)
SECRET = "of nobody's business"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that assistants may read, next to one that they may not."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.json").write_text(json.dumps({"feeds": [SECRET]}))
    (tmp_path / "root.json").write_text(json.dumps({"feeds": [SECRET]}))  # begins like the root
    (root / "link.json").symlink_to(tmp_path / "outside" / "secret.json")
    (root / "folder").symlink_to(tmp_path / "outside")
    (root / "linked").mkdir()
    (root / "linked" / "a_0_keypoints.json").symlink_to(tmp_path / "outside" / "secret.json")
    (root / "list.m3u8").write_text(f"#EXTM3U\n#EXTINF:1,\n{tmp_path}/outside/secret.json\n")
    (root / "list.txt").write_text(f"ffconcat version 1.0\nfile {tmp_path}/outside/secret.json\n")
    (root / "big.wav").write_bytes(b"")
    os.truncate(root / "big.wav", LIMITS.file_bytes + 1)
    os.mkfifo(root / "pipe")
    (root / "status.json").write_text(json.dumps({"feeds": [{"name": str(k)} for k in range(9)]}))
    return root


def called(
    root: Path, calls: list[tuple[str, dict[str, Any]]], limits: Limits = LIMITS
) -> list[tuple[bool, Any]]:
    """Return for each call whether it failed, and its content."""
    answers: list[tuple[bool, Any]] = []
    (root.parent / "scratch").mkdir(exist_ok=True)

    async def talk() -> None:
        server = make_server([str(root)], limits, str(root.parent / "scratch"))
        async with Client(server) as client:
            for name, arguments in calls:
                answer = await client.call_tool(name, arguments)
                content = answer.structured_content
                text = " ".join(getattr(part, "text", "") for part in answer.content)
                answers.append((bool(answer.is_error), text if content is None else content))

    anyio.run(talk)
    return answers


def hostile(root: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return two hundred calls that must be refused."""
    paths: list[Any] = [
        *("/etc/passwd", "../outside/secret.json", "folder/secret.json", "link.json", "linked"),
        *("../root.json", str(root.parent / "outside" / "secret.json"), "..", "../..", "", "/"),
        *("list.m3u8", "list.txt", "big.wav", "pipe", "nothing.mp4", "a\0b", "x" * 5000, "~"),
        *("mic", "-", "0", "rtsp://127.0.0.1/x", "http://127.0.0.1/x.mp4", "file:///etc/passwd"),
        *("concat:a|b", "subfile,,start,0,end,9,,:/etc/passwd", "/dev/zero", "/proc/self/environ"),
        *("*", "--help", "-o=/tmp/x", "@list", "status.json#../../x", "C:\\x", "\\\\host\\x"),
        *(5, None, ["status.json"], {"a": 1}, math.nan, True),
    ]
    tools = ("describe_file", "detect", "listen", "watch_status")
    calls: list[tuple[str, dict[str, Any]]] = [(t, {"path": p}) for p in paths for t in tools]
    good = {"path": "status.json"}
    calls += [
        ("detect", {**good, **wrong})
        for wrong in (
            *({"model": m} for m in ("/etc/passwd", "../x.pth", "-h", "", "a b", "x" * 999, 7)),
            *({"start_s": s} for s in (-1.0, -1e-9, "x", [], {})),
            *({"labels": x} for x in (["x"] * 101, [""], ["x" * 5000], "walk", [1])),
            {"threshold": -0.5},
            {"frames_per_second": "$(touch x)"},
        )
    ]
    calls += [("search_events", {"path": p}) for p in ("link.json", "../root.json", "status.json")]
    calls += [("no_such_tool", good), ("detect", {}), ("__init__", {}), ("", good)]
    chance = random.Random(0)
    while len(calls) < 200:
        parts = chance.choices(["..", "outside", "folder", "secret.json", ".", "%2e%2e"], k=6)
        calls.append((chance.choice(tools), {"path": "/".join(parts)}))
    return calls


def test_two_hundred_hostile_calls_read_nothing_outside(root: Path) -> None:
    calls = [call for call in hostile(root) if call[0] != "search_events"]
    before = sorted(map(str, root.parent.rglob("*")))
    answers = called(root, calls)
    assert len(answers) >= 195
    for call, (failed, content) in zip(calls, answers, strict=True):
        if call != ("watch_status", {"path": "status.json#../../x"}):
            assert failed, call
        assert SECRET not in str(content), call
        assert len(str(content)) < 2000, call
    assert [p for p in sorted(map(str, root.parent.rglob("*"))) if p not in before] == [
        str(root.parent / "scratch")
    ]


def called_as_a_process(root: Path, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the same of ``costream mcp``, over its standard input and output."""
    arguments = ["-m", "costream", "mcp", str(root)]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=environment())
    answers = []

    async def talk() -> None:
        async with Client(stdio_client(server)) as client:
            for name, given in calls:
                answer = await client.call_tool(name, given)
                text = " ".join(getattr(part, "text", "") for part in answer.content)
                answers.append((bool(answer.is_error), answer.structured_content or text))

    anyio.run(talk)
    return answers


@pytest.mark.slow
def test_models_files_and_segments(root: Path) -> None:
    shutil.copy(ROOT / "samples" / "room.mp4", root)
    shutil.copy(ROOT / "samples" / "street.ogg", root)
    part = {"path": "room.mp4", "model": "nanodet", "end_s": 1.0}
    film, seen, heard, state, store = called_as_a_process(
        root,
        [
            ("describe_file", {"path": str(root / "room.mp4")}),
            ("detect", part),
            ("listen", {"path": "street.ogg", "model": "mn04", "start_s": 5.0, "end_s": 11.0}),
            ("watch_status", {"path": "status.json"}),
            ("search_events", {"path": "status.json", "query": "fall"}),
        ],
    )
    assert film[1]["recordings"][0]["video"] == "640x480 pixels, 25 frames a second"
    assert seen[1]["model"] == "nanodet"
    assert seen[1]["analysed_s"] == pytest.approx(1.0, abs=0.3)
    assert "chair" in {segment["label"] for segment in seen[1]["segments"]}
    assert heard[1]["segments"]
    assert all(segment["end_s"] > 5.0 for segment in heard[1]["segments"])
    assert [feed["name"] for feed in state[1]["feeds"]] == list("012345678")
    assert store[0]
    assert "status.json" in store[1]


@pytest.mark.slow
def test_an_answer_that_is_too_long_is_refused(root: Path) -> None:
    ((failed, text),) = called(root, [("list_models", {})], Limits(120.0, 1 << 22, 5, 1000))
    assert failed
    assert "longer than 0.0 MB: ask for a part" in text


@pytest.mark.slow
def test_a_call_that_takes_too_long_is_ended_and_floods_are_refused(root: Path) -> None:
    shutil.copy(ROOT / "samples" / "room.mp4", root)
    ((failed, text),) = called(root, [("detect", {"path": "room.mp4"})], Limits(0.3, 1 << 30, 5))
    assert failed
    assert "took longer than 0.3 s" in text
    answers: list[str] = []

    async def flood() -> None:
        server = make_server([str(root)], Limits(0.05, 1 << 30, 5), str(root))
        async with Client(server) as client, anyio.create_task_group() as tasks:

            async def ask() -> None:
                answer = await client.call_tool("list_models", {})
                answers.append(str(answer.content))

            for _ in range(40):
                tasks.start_soon(ask)

    anyio.run(flood)
    assert sum("busy" in answer for answer in answers) >= 25


def test_roots_that_are_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", str(tmp_path / "none")]) == 2
    assert "none: no such folder" in capsys.readouterr().err
