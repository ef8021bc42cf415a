"""The container and its neighbours: what their files tell to run does run, without containers."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kit.broker import Broker, Listener, needs_broker
from kit.media import excerpt
from kit.object_nets import write_model
from kit.paths import ROOT, SAMPLES
from kit.program import environment, start
from kit.runs import records, wait_until

FOLDER = SAMPLES / "compose"


def steps() -> dict[str, str]:
    """The last instruction of each kind in the Dockerfile, on one line."""
    text = (FOLDER / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    return dict(re.findall(r"^([A-Z]+) +(.+)$", text, re.MULTILINE))


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]


def test_what_the_files_name_is_there(services: dict[str, Any]) -> None:
    build = services["watch"]["build"]
    assert (FOLDER / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).samefile(FOLDER / "Dockerfile")
    mounts = [m for service in services.values() for m in service.get("volumes", ())]
    assert all((FOLDER / m.split(":")[0]).exists() for m in mounts if m.startswith("."))
    assert set(services["watch"]["depends_on"]) <= services.keys()
    assert steps()["USER"] == "costream"
    assert json.loads(steps()["ENTRYPOINT"]) == ["costream"]
    assert json.loads(steps()["CMD"])[0] == "watch"


# What an instruction may begin with, and what has to be so of its words (Docker's reference).
KNOWN = {"FROM", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """All instructions of the Dockerfile in order, each on one line."""
    lines = (FOLDER / "Dockerfile").read_text("utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]  # type: ignore[misc]


def test_the_dockerfile_keeps_to_the_rules() -> None:
    """Those of linters that matter here: known words, pinned bases, lists, no root, no caches."""
    given = instructions()
    assert {word for word, _ in given} <= KNOWN
    assert given[0][0] == "FROM"
    stages = [rest.split() for word, rest in given if word == "FROM"]
    assert all(re.fullmatch(r"[a-z]+:[0-9.]+-slim", stage[0]) for stage in stages)
    named = {stage[2] for stage in stages if len(stage) == 3 and stage[1] == "AS"}
    for word, rest in given:
        words = rest.split()
        if word in ("ENTRYPOINT", "CMD"):
            assert all(isinstance(one, str) for one in json.loads(rest))
        if word == "COPY":
            sources = [w.partition("=")[2] for w in words if w.startswith("--from=")]
            assert set(sources) <= named
            assert words[-1].startswith("/")
        if word == "WORKDIR":
            assert rest.startswith("/")
        if word == "RUN" and "pip" in words:
            assert "--no-cache-dir" in words
    order = [word for word, _ in given]
    last = len(order) - order[::-1].index("FROM")
    assert order[last:].index("USER") < order[last:].index("ENTRYPOINT")
    assert [order.count(w) for w in ("ENTRYPOINT", "CMD", "HEALTHCHECK")] == [1, 1, 1]
    users = [rest for word, rest in given if word == "USER"]
    assert users
    assert "root" not in users


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_the_steps_are_shell_lines(tmp_path: Path) -> None:
    """Each RUN is run by sh in folders of its own, with programs that write down their words."""
    place, wheels = tmp_path / "bin", tmp_path / "wheels"
    place.mkdir()
    wheels.mkdir()
    (wheels / "costream-0.1.0-py3-none-any.whl").touch()
    for name in ("pip", "useradd", "install", "costream"):
        program = place / name
        program.write_text(f'#!/bin/sh\nfor word in {name} "$@"; do echo "$word"; done\n')
        program.chmod(0o755)
    done = []
    for line in (rest for word, rest in instructions() if word == "RUN"):
        checked = subprocess.run(["sh", "-n", "-c", line], capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")
        line = line.replace("/wheels", str(wheels))
        ran = subprocess.run(
            ["sh", "-e", "-c", line],
            env={"PATH": f"{place}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        done.append(ran.stdout.split("\n")[:-1])
    build, fetch, user = done
    assert build[:2] == ["pip", "wheel"]
    assert build[-1] == "/src"
    assert fetch[-2:] == ["torch<2.16", f"{wheels}/costream-0.1.0-py3-none-any.whl[mqtt]"]
    assert user[0] == "useradd"
    assert user[-5:] == ["install", "-d", "-o", "costream", "/data"]


@pytest.mark.slow
@needs_broker
def test_the_watch_runs_and_is_healthy(services: dict[str, Any], tmp_path: Path) -> None:
    words = shlex.split(services["watch"]["command"])
    weights = write_model(tmp_path / "tiny-objects.safetensors")
    clip = excerpt(SAMPLES / "room.mp4", tmp_path / "room.mp4", 0, 10)
    feeds = (FOLDER / "feeds.toml").read_text("utf-8")
    (tmp_path / "feeds.toml").write_text(feeds.replace("rtsp://camera:8554/room", str(clip)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with Broker(tmp_path) as broker, Listener(broker) as heard:
        own = {"/config/feeds.toml": "feeds.toml", "eventful-vitdet": str(weights), "9100": port,
               "mqtt://broker": f"mqtt://127.0.0.1:{broker.port}"}  # fmt: skip
        assert own.keys() <= set(words)
        child = start(*(own.get(word, word) for word in words), "--realtime", cwd=tmp_path)
        check = steps()["HEALTHCHECK"].split("CMD python ")[1].replace(":9100/", f":{port}/")
        line = f"{shlex.quote(sys.executable)} {check}"

        def is_healthy() -> bool:
            done = subprocess.run(["sh", "-c", line], env=environment(), capture_output=True)
            return done.returncode == 0

        wait_until(is_healthy, child)
        wait_until(lambda: heard.newest("costream/room/available") == b"online", child)
        child.send_signal(signal.SIGTERM)  # as a container is stopped
        child.communicate(timeout=60)
        assert child.returncode == 143
        wait_until(lambda: heard.newest("costream/status") == b"offline")
    assert records(tmp_path / "log" / "room.jsonl")[0]["options"]["places"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg")
def test_the_camera_plays_the_sample(services: dict[str, Any], tmp_path: Path) -> None:
    line = services["camera"]["environment"]["MTX_PATHS_ROOM_RUNONINIT"]
    out = tmp_path / "out.ts"
    line = line.replace("/samples/room.mp4", str(SAMPLES / "room.mp4"))
    line = line.replace("-f rtsp rtsp://localhost:8554/room", f"-t 0.5 -f mpegts {out}")
    subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=60)
    assert out.stat().st_size > 1000
